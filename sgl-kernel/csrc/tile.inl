// Some queries meet a packed chunk (chunk.inl): scores, weights, output, six queries at a time in
// registers. What a query has come to is its record.

static constexpr int kQueries = 6;  // of a tile
static constexpr float kLog2E = 1.44269504088896341f;
static constexpr float kLowest = -1e30f;     // maximum of no scores: 2^(-inf - kLowest) is 0
static constexpr float kUnseen = -INFINITY;  // score of a key that a query does not see

#if HAVE_DOT
static inline F fused(F c, U a, U b, Places<1>) {
  return (F)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}
#endif
static inline F fused(F c, U a, U b, Places<0>) { return c + (F)a * (F)b; }

// 2^x within 2 ulp for x <= 0 (0 below -126): a polynomial of degree 5 on [-1/2, 1/2], exact at 0
// and off by at most 9.2e-8: a least-squares fit, weighted until its errors were even.
static inline F power_of_two(F x) {
  const F low = splat(-126.f);
  F clipped = low > x ? low : x;  // NaN stays, here and below
  F k = whole(clipped), r = clipped - k;
  F p = splat(1.326472731307149e-3f);
  p = p * r + splat(9.671512991189957e-3f);
  p = p * r + splat(5.550733581185341e-2f);
  p = p * r + splat(2.4022242426872253e-1f);
  p = p * r + splat(6.931470036506653e-1f);
  p = p * r + splat(1.f);
  return x < low ? F{} : scaled(p, k);
}

template <int step, int... n>
static inline F turned(F v, Places<n...>) {
  return __builtin_shufflevector(v, v, ((n + step) % LANES)...);
}
// The largest of all lanes.
template <int step = LANES / 2>
static inline float top_of(F v) {
  if constexpr (step == 0) return v[0];
  else return top_of<step / 2>(max(v, turned<step>(v, typename Count<LANES>::type())));
}

// C [n, w vectors] += A [n, k] B [k, w vectors], or = with `fresh`; A and B in units.
template <bool pairs, int n, int w>
static inline void block(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, int64_t k,
                         float* c, int64_t ldc, bool fresh) {
  F sums[n][w];
  for (int i = 0; i < n; i++)
    for (int j = 0; j < w; j++) sums[i][j] = fresh ? F{} : load(c + i * ldc + j * LANES);
  for (int64_t d = 0; d < k; d++) {
    U right[w];
    for (int j = 0; j < w; j++) right[j] = *reinterpret_cast<const Uu*>(b + d * ldb + j * LANES);
    for (int i = 0; i < n; i++) {
      U left = U{} + a[i * lda + d];
      for (int j = 0; j < w; j++) sums[i][j] = fused(sums[i][j], left, right[j], Places<pairs>());
    }
  }
  for (int i = 0; i < n; i++)
    for (int j = 0; j < w; j++) store(c + i * ldc + j * LANES, sums[i][j]);
}

template <bool pairs, int n, int w>
static inline void columns(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb,
                           int64_t k, float* c, int64_t ldc, int64_t vectors, bool fresh) {
  for (; vectors >= w; vectors -= w, b += w * LANES, c += w * LANES)
    block<pairs, n, w>(a, lda, b, ldb, k, c, ldc, fresh);
  if constexpr (w > 1)
    if (vectors > 0) columns<pairs, n, w / 2>(a, lda, b, ldb, k, c, ldc, vectors, fresh);
}

// Enough sums at a time to hide the latency of one, as many as there are registers for.
template <bool pairs>
static void product(int n, const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb,
                    int64_t k, float* c, int64_t ldc, int64_t vectors, bool fresh) {
  constexpr bool wide = REGISTERS >= 32;
  switch (n) {
    case 1: return columns<pairs, 1, wide ? 4 : 8>(a, lda, b, ldb, k, c, ldc, vectors, fresh);
    case 2: return columns<pairs, 2, 4>(a, lda, b, ldb, k, c, ldc, vectors, fresh);
    case 3: return columns<pairs, 3, 4>(a, lda, b, ldb, k, c, ldc, vectors, fresh);
    case 4: return columns<pairs, 4, wide ? 4 : 2>(a, lda, b, ldb, k, c, ldc, vectors, fresh);
    case 5: return columns<pairs, 5, wide ? 4 : 2>(a, lda, b, ldb, k, c, ldc, vectors, fresh);
    default: return columns<pairs, 6, wide ? 4 : 2>(a, lda, b, ldb, k, c, ldc, vectors, fresh);
  }
}

// A query's record: output [padded dim of a value], LANES partial sums of the weights, their maximum.
struct Record {
  int64_t padded;
  explicit Record(int64_t dim) : padded((dim + LANES - 1) / LANES * LANES) {}
  int64_t floats() const { return padded + 2 * LANES; }
  float* sums(float* r) const { return r + padded; }
  float& maximum(float* r) const { return r[padded + LANES]; }
  void clear(float* r) const {
    memset(r, 0, static_cast<size_t>(floats()) * 4);
    maximum(r) = kLowest;
  }
};

static int64_t padded(int64_t dim) { return Record(dim).padded; }

// Joins the record of a segment to that of all before it.
__attribute__((noinline)) static void join(const Record& record, float* all, float* part) {
  float a = record.maximum(all), b = record.maximum(part), top = a > b ? a : b;
  F x = power_of_two(splat(a - top)), y = power_of_two(splat(b - top));
  for (int64_t i = 0; i < record.padded + LANES; i += LANES)
    store(all + i, load(all + i) * x + load(part + i) * y);
  record.maximum(all) = top;
}

// The output of a head; its sink is one more score, without a value.
static void finish(const Record& record, float* r, const float* sink, int64_t dim, float* out) {
  float total = sum(load(record.sums(r))), share = 1.f;
  if (sink) {
    float score = *sink * kLog2E, before = record.maximum(r);
    float top = before > score ? before : score;
    share = power_of_two(splat(before - top))[0];
    total = total * share + power_of_two(splat(score - top))[0];
  }
  F factor = splat(share / total);
  int64_t i = 0;
  for (; i + LANES <= dim; i += LANES) store(out + i, load(r + i) * factor);
  if (i < dim) store_part(out + i, load(r + i) * factor, dim - i);
}

struct Query {
  int64_t low, high;  // sees keys at positions [low, high)
  float* out;         // of head 0
};

// What one chunk does to scores: where it begins, the scales of its keys and values (I8).
struct Scores {
  int64_t begin;
  const float *key_scales, *value_scales;
  float cap;
};

// Scores [vectors] of one query become weights, in units; its record learns of a new maximum.
template <bool pairs>
__attribute__((noinline)) static void weigh(const Scores& of, const Query& query, float* scores,
                                            int64_t vectors, const Record& record, float* r,
                                            void* weights) {
  I place;
  for (int i = 0; i < LANES; i++) place[i] = i;
  auto low = static_cast<int32_t>(query.low > of.begin ? query.low - of.begin : 0);
  int64_t seen = query.high - of.begin;
  auto high = static_cast<int32_t>(seen < kChunk ? seen : kChunk);
  bool whole = low == 0 && high >= vectors * LANES;
  F top = splat(kLowest);
  for (int64_t v = 0; v < vectors; v++) {
    F s = load(scores + v * LANES);
    if (of.key_scales) s = s * load(of.key_scales + v * LANES);
    if (of.cap != 0) s = splat(of.cap * kLog2E) * tanh(s * splat(1.f / of.cap));
    if (!whole) {
      I at = place + static_cast<int32_t>(v * LANES);
      s = ((at >= low) & (at < high)) ? s : splat(kUnseen);
    }
    top = max(s, top);
    store(scores + v * LANES, s);
  }
  float before = record.maximum(r), now = top_of(top);
  if (now > before) {
    F factor = power_of_two(splat(before - now));
    for (int64_t i = 0; i < record.padded + LANES; i += LANES) store(r + i, load(r + i) * factor);
    record.maximum(r) = now;
  } else {
    now = before;
  }
  F total = {};
  for (int64_t v = 0; v < vectors; v++) {
    F p = power_of_two(load(scores + v * LANES) - splat(now));
    total = total + p;
    if (of.value_scales) {
      p = p * load(of.value_scales + v * LANES);
      // A scale of what was not finite must not reach queries that do not see it.
      if (!whole) p = load(scores + v * LANES) == splat(kUnseen) ? F{} : p;
    }
#if HAVE_DOT
    if constexpr (pairs) {
      *(reinterpret_cast<__m256bh*>(weights) + v) = _mm512_cvtneps_pbh((__m512)p);
      continue;
    }
#endif
    store(static_cast<float*>(weights) + v * LANES, p);
  }
  store(record.sums(r), load(record.sums(r)) + total);
}
