// Low-rank adapters (Hu et al. 2021, LoRA): y += B (A x) of single tokens, in two halves.
//
//   shrink   low = A x, before the product that is adapted: a few numbers for each pair and token
//   add_low  B low, at the end of that product, block by block (gemm_finish.inl)
//
// A is [rank, inputs], B is [rank, outputs]: both are read along their rows. Of a token's low
// numbers those of the product's pairs lie one behind the other. Sums run over inputs (vectors of
// them, then lanes) and over ranks in one fixed order, so that a token's bits do not depend on the
// tokens beside it.
#ifndef SGL_LORA
#define SGL_LORA

// out[j] = sum of a[j] * x for COUNT rows of A, `ld` elements apart.
template <int COUNT, class T>
static inline void dots(const T* a, int64_t ld, const float* x, int64_t k, float* out) {
  F sums[COUNT] = {};
  int64_t i = 0;
  for (; i + LANES <= k; i += LANES) {
    F v = load(x + i);
#pragma GCC unroll 8
    for (int j = 0; j < COUNT; j++) sums[j] += load(a + j * ld + i) * v;
  }
  if (int64_t left = k - i; left > 0) {
    F v = load_part(x + i, left);
#pragma GCC unroll 8
    for (int j = 0; j < COUNT; j++) {
      T row[LANES] = {};
      memcpy(row, a + j * ld + i, static_cast<size_t>(left) * sizeof(T));
      sums[j] += load(row) * v;
    }
  }
  for (int j = 0; j < COUNT; j++) out[j] = sum(sums[j]);
}

// Rows [begin, end) of A.
template <class T>
static void shrink_rows(const void* data, const float* x, int64_t k, int64_t begin, int64_t end,
                        float* out) {
  const T* a = static_cast<const T*>(data);
  for (; begin + 8 <= end; begin += 8) dots<8>(a + begin * k, k, x, k, out + begin);
  for (; begin < end; begin++) dots<1>(a + begin * k, k, x, k, out + begin);
}

struct PairRange {
  const LowRank *begin, *end;
};
static inline PairRange pairs_of(const Adapted& use, int64_t row, int64_t product) {
  const Adapter& adapter = use.adapters[use.groups[row]];
  return {adapter.pairs + adapter.starts[product], adapter.pairs + adapter.starts[product + 1]};
}

// Scratch: low [count, stride], then, for a norm, the tokens' normed inputs [count, k].
static size_t low_bytes(const Adapted& use, int64_t k) {
  return static_cast<size_t>(use.count * (use.stride + k)) * 4 + 64;
}

static void shrink(Team& team, const Adapted& use, int64_t product, const Norm& norm,
                   const float* x, int64_t ldx, int64_t k, float* low) {
  float* normed = low + use.count * use.stride;
  if (norm.gain) {
    Range mine = team.part(use.count);
    for (int64_t i = mine.begin; i < mine.end; i++)
      if (PairRange p = pairs_of(use, i, product); p.begin != p.end)
        norm_row(x + use.tokens[i] * ldx, norm.gain, norm.eps, k, normed + i * k);
    team.barrier();
  }
  constexpr int64_t kPiece = 8;  // ranks that one member takes at once
  int64_t pieces = use.stride / kPiece;
  Range mine = team.part(use.count * pieces);
  for (int64_t task = mine.begin; task < mine.end; task++) {
    int64_t i = task / pieces, from = task % pieces * kPiece, before = 0;
    const float* input = norm.gain ? normed + i * k : x + use.tokens[i] * ldx;
    PairRange p = pairs_of(use, i, product);
    for (const LowRank* pair = p.begin; pair != p.end; before += pair->rank, pair++) {
      int64_t begin = from > before ? from - before : 0;
      int64_t end = from + kPiece < before + pair->rank ? from + kPiece - before : pair->rank;
      if (begin >= end) continue;
      float* out = low + i * use.stride + before;
      if (use.type == Type::F32) shrink_rows<float>(pair->a, input, k, begin, end, out);
      else shrink_rows<bf16>(pair->a, input, k, begin, end, out);
    }
  }
}

// more[c] += (B low)[first + c], `count` outputs.
template <class T>
static void add_pairs(const Low& l, int64_t row, int64_t first, int64_t count, float* more) {
  PairRange p = pairs_of(*l.use, row, l.product);
  const float* low = l.values + row * l.use->stride;
  for (const LowRank* pair = p.begin; pair != p.end; low += pair->rank, pair++) {
    int64_t begin = first > pair->first ? first : pair->first;
    int64_t end = first + count, last = pair->first + pair->count;
    if (end > last) end = last;
    const T* b = static_cast<const T*>(pair->b);
    for (int64_t c = begin; c < end; c += LANES) {
      int64_t left = end - c;
      F total{};
      for (int64_t j = 0; j < pair->rank; j++) {
        const T* at = b + j * pair->count + (c - pair->first);
        if (left >= LANES) {
          total += splat(low[j]) * load(at);
        } else {
          T part[LANES] = {};
          memcpy(part, at, static_cast<size_t>(left) * sizeof(T));
          total += splat(low[j]) * load(part);
        }
      }
      float* to = more + (c - first);
      if (left >= LANES) store(to, load(to) + total);
      else store_part(to, load_part(to, left) + total, left);
    }
  }
}

static void add_low(const Low& l, int64_t row, int64_t first, int64_t count, float* more) {
  if (count <= 0) return;
  if (l.use->type == Type::F32) add_pairs<float>(l, row, first, count, more);
  else add_pairs<bf16>(l, row, first, count, more);
}

#endif  // SGL_LORA
