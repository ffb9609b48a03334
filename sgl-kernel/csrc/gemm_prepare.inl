// The first half of a product: rows of x, RMS-normed where asked for, in the form that the steps of
// gemm_steps.inl read (struct Inputs). A row is one member's work from start to end.

struct Normed {
  const float *x, *gain;
  float factor;
  F operator()(int64_t i, int64_t count) const {  // lanes [i, i + count), zeros behind
    bool whole = count == LANES;
    F v = whole ? load(x + i) : load_part(x + i, count);
    if (!gain) return v;
    return v * splat(factor) * (whole ? load(gain + i) : load_part(gain + i, count));
  }
};

// put(i, v) for every vector of the row.
template <class Put>
static inline void for_row(const Normed& x, int64_t k, const Put& put) {
  int64_t i = 0;
  for (; i + LANES <= k; i += LANES) put(i, x(i, LANES));
  if (i < k) put(i, x(i, k - i));
}

// int8 and its scale. All zeros and NaN as the scale where a value is not finite.
static float quantise(const Normed& x, int64_t k, uint8_t* row) {
  F top{};
  U bad{};
  for_row(x, k, [&](int64_t, F v) {
    v = magnitude(v);
    top = max(v, top);
    bad |= (U)((U)v >= 0x7f800000);
  });
  float largest = highest((F)(bad & 0x3f800000)) > 0 ? NAN : highest(top);
  F inverse = splat(inverse_of(largest));
  for_row(x, k, [&](int64_t i, F v) {
    I q = nearest(largest == largest ? v * inverse : F{});
#if HAVE_SIGNED
    typedef int8_t Q __attribute__((vector_size(LANES), aligned(1), may_alias));
    *reinterpret_cast<Q*>(row + i) = __builtin_convertvector(q, Q);
#elif HAVE_QUADS  // dpbusd takes x without a sign; settled by the sums of the weights (finish)
    typedef uint8_t Q __attribute__((vector_size(LANES), aligned(1), may_alias));
    *reinterpret_cast<Q*>(row + i) = __builtin_convertvector(q + 128, Q);
#else
    store(reinterpret_cast<float*>(row) + i, __builtin_convertvector(q, F));
#endif
  });
  return scale_of(largest);
}

// What lows are multiplied with: the sum of the inputs of each group.
static void sum_groups(const Layout& l, const Inputs& in, uint8_t* row) {
  float* sums = reinterpret_cast<float*>(row + in.sums_at);
  int64_t group = 2 * l.group_steps;
#if HAVE_PAIRS
  const bf16* x = reinterpret_cast<const bf16*>(row);
#else
  const float* x = reinterpret_cast<const float*>(row);
#endif
  for (int64_t begin = 0; begin < in.padded; begin += group) {
    F total{};
    for (int64_t i = begin; i < begin + group; i += LANES) total += load(x + i);
    *sums++ = sum(total);
  }
}

// Row `r` of the scratch, made of `from`.
static void prepare_row(const Layout& l, const Inputs& in, const Norm& norm, const float* from,
                        int64_t r, void* scratch) {
  uint8_t* row = static_cast<uint8_t*>(scratch) + in.rows_at + r * in.stride;
  Normed v{from, norm.gain, norm.gain ? norm_factor(from, l.k, norm.eps) : 1.f};
  if (l.format == Format::W8A8) {
    static_cast<float*>(scratch)[r] = quantise(v, l.k, row);
  } else if (l.format == Format::F32) {
    for_row(v, l.k, [&](int64_t i, F f) { store(reinterpret_cast<float*>(row) + i, f); });
  } else {
#if HAVE_PAIRS
    for_row(v, l.k, [&](int64_t i, F f) { store_rounded(reinterpret_cast<bf16*>(row) + i, f); });
#else
    for_row(v, l.k,
            [&](int64_t i, F f) { store(reinterpret_cast<float*>(row) + i, widen(narrow(f))); });
#endif
  }
  // The last vector has zeros behind k; these are the ones behind it, up to a whole step.
  int64_t end = round_up(l.k, LANES);
  if (end < in.padded) memset(row + end * in.bytes, 0, (in.padded - end) * in.bytes);
  if (affine(l.format)) sum_groups(l, in, row);
}

static void prepare(Team& team, const Matrix& w, const Norm& norm, const float* x, int64_t ldx,
                    int64_t m, void* scratch) {
  Layout l = layout(w);
  Inputs in = inputs_of(l, m);
  Range mine = team.part(m);
  for (int64_t r = mine.begin; r < mine.end; r++) prepare_row(l, in, norm, x + r * ldx, r, scratch);
}
