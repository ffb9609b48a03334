// Sampling without sorting the vocabulary: a few vector passes over a row.
//
//   1. the largest allowed logit, its lowest id, and whether all are finite
//   2. weights w = exp((logit - largest) / temperature), 0 where the mask forbids, and their sum
//   3. the least weight that top-k, top-p and min-p keep, by a partial selection (`least`)
//   4. the first token at which the cumulated weights exceed uniform * sum, in vocabulary order:
//      sums of blocks first, then tokens of one block
// Equal weights are kept or left out together. Sums over a row are of floats for 512 bytes and of
// doubles beyond, in a fixed order.

static constexpr int64_t kBlock = 256;  // tokens summed together
static constexpr int64_t kWord = 32;    // tokens of a word of the mask

// 32 tokens from i on as vectors; -inf where they are not allowed or lie behind the end.
static inline void read_word(const float* x, int64_t i, int64_t n, uint32_t allowed,
                             F (&out)[kWord / LANES]) {
  float part[kWord];
  const float* from = x + i;
  if (n - i < kWord) {
    for (int64_t j = 0; j < kWord; j++) part[j] = j < n - i ? x[i + j] : -INFINITY;
    from = part;
  }
  U bit;
  for (int j = 0; j < LANES; j++) bit[j] = 1u << j;
  for (int v = 0; v < kWord / LANES; v++) {
    out[v] = load(from + v * LANES);
    if (allowed != ~0u)
      out[v] = (((U{} + (allowed >> (v * LANES) % 32)) & bit) != 0) ? out[v] : splat(-INFINITY);
  }
}

struct Peak {
  float top;
  int32_t token;  // the lowest that has it; -1: none is allowed
  bool finite;
};

static Peak peak(const float* x, int64_t n, const uint32_t* mask) {
  constexpr int kWide = kWord / LANES;
  F best[kWide];
  I at[kWide], broken = {};
  for (int v = 0; v < kWide; v++) {
    best[v] = splat(-INFINITY);
    for (int j = 0; j < LANES; j++) at[v][j] = -1;
  }
  I lane;
  for (int j = 0; j < LANES; j++) lane[j] = j;
  for (int64_t i = 0; i < n; i += kWord) {
    uint32_t allowed = mask ? mask[i / kWord] : ~0u;
    if (!allowed) continue;
    F value[kWide];
    read_word(x, i, n, allowed, value);
    for (int v = 0; v < kWide; v++) {
      I better = value[v] > best[v];
      broken |= ~(value[v] < splat(INFINITY));
      best[v] = better ? value[v] : best[v];
      at[v] = better ? lane + static_cast<int32_t>(i + v * LANES) : at[v];
    }
  }
  Peak out{-INFINITY, -1, true};
  for (int v = 0; v < kWide; v++)
    for (int j = 0; j < LANES; j++) {
      float value = best[v][j];
      int32_t token = at[v][j];
      if (token < 0) continue;
      if (value > out.top || (value == out.top && token < out.token)) out = {value, token, true};
    }
  for (int j = 0; j < LANES; j++) out.finite &= broken[j] == 0;
  return out;
}

// Weights of a row [n, and zeros up to whole words]; sums of blocks; returns the sum of all.
static double weigh_row(const float* x, int64_t n, const uint32_t* mask, float top,
                        float temperature, float* w, double* sums) {
  constexpr int kWide = kWord / LANES;
  const F factor = splat(1.f / temperature), peak = splat(top);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    F block[kWide] = {};
    for (int64_t i = begin; i < n && i < begin + kBlock; i += kWord) {
      uint32_t allowed = mask ? mask[i / kWord] : ~0u;
      if (!allowed) {
        memset(w + i, 0, kWord * 4);
        continue;
      }
      F value[kWide];
      read_word(x, i, n, allowed, value);
      for (int v = 0; v < kWide; v++) {
        F weight = exp((value[v] - peak) * factor);
        store(w + i + v * LANES, weight);
        block[v] = block[v] + weight;
      }
    }
    F all = block[0];
    for (int v = 1; v < kWide; v++) all = all + block[v];
    total += sums[begin / kBlock] = static_cast<double>(sum(all));
  }
  return total;
}

// The same sums, of weights that are at least `least`.
static double sum_kept(const float* w, int64_t n, float least, double* sums) {
  constexpr int kWide = kWord / LANES;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    F block[kWide] = {};
    for (int64_t i = begin; i < n && i < begin + kBlock; i += kWord)
      for (int v = 0; v < kWide; v++) {
        F weight = load(w + i + v * LANES);
        block[v] = block[v] + (weight >= splat(least) ? weight : F{});
      }
    F all = block[0];
    for (int v = 1; v < kWide; v++) all = all + block[v];
    total += sums[begin / kBlock] = static_cast<double>(sum(all));
  }
  return total;
}

// ---- the least weight that is kept -------------------------------------------------------------

struct Sums {
  int64_t above, within;  // how many weights
  double above_mass, within_mass;
};

// Sums weights above `high` and those within [low, high], which are copied to `to` (as long as `w`
// and a vector; it may be `w`).
static Sums split(const float* w, int64_t n, float low, float high, float* to) {
  Sums out{};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    int64_t end = begin + kBlock < n ? begin + kBlock : n;
    F above = {}, within = {};
    I count = {};
    for (int64_t i = begin; i < end; i += LANES) {
      F v = end - i < LANES ? load_part(w + i, end - i) : load(w + i);
      if (end - i < LANES)  // what is not there is neither
        for (int64_t j = end - i; j < LANES; j++) v[j] = -1.f;
      I greater = v > splat(high), kept = (v >= splat(low)) & ~greater;
      above = above + (F)((I)v & greater);
      within = within + (F)((I)v & kept);
      count -= greater;
#if LANES == 16
      __mmask16 mask = _mm512_movepi32_mask((__m512i)kept);
      _mm512_storeu_ps(to + out.within, _mm512_maskz_compress_ps(mask, (__m512)v));
      out.within += __builtin_popcount(mask);
#else
      for (int j = 0; j < LANES; j++) {
        to[out.within] = v[j];
        out.within -= kept[j];
      }
#endif
    }
    out.above_mass += static_cast<double>(sum(above));
    out.within_mass += static_cast<double>(sum(within));
    for (int j = 0; j < LANES; j++) out.above += count[j];
  }
  return out;
}

static void sort_down(float* x, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    float v = x[i];
    int64_t j = i;
    for (; j > 0 && x[j - 1] < v; j--) x[j] = x[j - 1];
    x[j] = v;
  }
}

// Of weights that are at least `from`, the least that is preceded by larger ones of less than
// `target` in all: of their number, or with `mass` of their sum. 0: all are kept.
//
// Quickselect: a sample tells between which two weights the answer is likely to lie (Floyd and
// Rivest 1975), one pass sums what is above and keeps what is between, and so on with that.
// `size`: how many (or how much) there are in all.
static float least(const float* w, int64_t n, float from, bool mass, double size, double target,
                   float* spare) {
  constexpr int64_t kSample = 64, kMargin = 6;
  float floor = from, ceiling = INFINITY;  // the answer lies within, or nothing is left out
  double above = 0;                        // of what is larger than those
  const float* now = w;
  int64_t left = n;
  if (from > 0) left = split(w, n, from, INFINITY, spare).within, now = spare;
  bool narrow = false;
  while (left > kSample) {
    float sample[kSample];
    for (int64_t i = 0; i < kSample; i++) sample[i] = now[(2 * i + 1) * left / (2 * kSample)];
    sort_down(sample, kSample);
    // From the smallest up, since few large ones may hold most of the mass and be in no sample.
    double below = size - (target - above), step = static_cast<double>(left) / kSample;
    int64_t place = kSample - 1;
    for (; place > 0; place--) {
      below -= step * (mass ? static_cast<double>(sample[place]) : 1.);
      if (below <= 0) break;
    }
    int64_t first = narrow ? place : place - kMargin, last = narrow ? place : place + kMargin;
    float high = first < 0 ? ceiling : sample[first], low = last < kSample ? sample[last] : floor;
    Sums part = split(now, left, low, high, spare);
    double larger = above + (mass ? part.above_mass : static_cast<double>(part.above));
    double inner = mass ? part.within_mass : static_cast<double>(part.within);
    if (larger < target && larger + inner >= target) {
      if (low == high) return low;
      narrow = part.within == left;
      above = larger, size = inner, now = spare, left = part.within;
      floor = low, ceiling = high;
      continue;
    }
    // Rare: the answer lies elsewhere, and is looked for there in the whole row.
    if (larger >= target) floor = std::nextafter(high, INFINITY);
    else if (low > floor) above = larger + inner, ceiling = std::nextafter(low, -INFINITY);
    else return 0;
    part = split(w, n, floor, ceiling, spare);
    now = spare, left = part.within;
    size = mass ? part.within_mass : static_cast<double>(part.within);
    narrow = false;
    if (!left) return 0;
  }
  float sorted[kSample];
  memcpy(sorted, now, static_cast<size_t>(left) * 4);
  sort_down(sorted, left);
  float kept = left ? sorted[0] : 0;
  for (int64_t i = 0; i < left && above < target;) {
    kept = sorted[i];
    for (; i < left && sorted[i] == kept; i++) above += mass ? static_cast<double>(kept) : 1.;
  }
  return kept;
}

// ---- one row -----------------------------------------------------------------------------------

static int32_t invert(const float* w, int64_t n, float least, const double* sums, double total,
                      double uniform) {
  double at = uniform * total, before = 0;
  if (at >= total) at = std::nextafter(total, 0.);
  int64_t block = 0, blocks = (n + kBlock - 1) / kBlock;
  int64_t last = 0;  // block that holds anything
  for (; block < blocks; block++) {
    if (sums[block] > 0) last = block;
    if (before + sums[block] > at) break;
    before += sums[block];
  }
  if (block == blocks) block = last;
  // Within a block sums may be rounded otherwise: then it is the last token that has weight.
  int32_t token = -1;
  for (int64_t i = block * kBlock; i < n && i < (block + 1) * kBlock; i++) {
    if (!(w[i] >= least && w[i] > 0)) continue;
    token = static_cast<int32_t>(i);
    before += static_cast<double>(w[i]);
    if (before > at) break;
  }
  return token;
}

static int32_t draw_row(const float* x, int64_t n, const Draw& draw, float* w, float* spare,
                        double* sums) {
  Peak best = peak(x, n, draw.mask);
  if (!best.finite) return -2;
  if (best.token < 0) return -1;
  if (!(draw.temperature > 0) || draw.top_k == 1) return best.token;
  double total = weigh_row(x, n, draw.mask, best.top, draw.temperature, w, sums);
  float kept = 0;
  if (draw.top_k > 0 && draw.top_k < n)
    kept = least(w, n, 0, false, static_cast<double>(n), draw.top_k, spare);
  if (draw.top_p < 1) {
    if (kept > 0) total = split(w, n, kept, INFINITY, spare).within_mass;
    double target = static_cast<double>(draw.top_p) * total;
    float nucleus = least(w, n, kept, true, total, target > 1e-30 ? target : 1e-30, spare);
    kept = nucleus > kept ? nucleus : kept;
  }
  if (draw.min_p > kept) kept = draw.min_p < 1 ? draw.min_p : 1;
  if (kept > 0) total = sum_kept(w, n, kept, sums);
  return invert(w, n, kept, sums, total, draw.uniform);
}

static int64_t draw_floats(int64_t n) { return (n + kWord + 63) / 64 * 64 + LANES; }
static int64_t draw_sums(int64_t n) { return (n + kBlock - 1) / kBlock + 8; }

static size_t draw_bytes(int64_t n, int threads) {
  return static_cast<size_t>(threads) *
         static_cast<size_t>(2 * draw_floats(n) * 4 + draw_sums(n) * 8);
}

static void draw(Team& team, const float* logits, int64_t ld, int64_t m, int64_t n,
                 const Draw* draws, int32_t* tokens, void* scratch) {
  // Doubles first, for alignment.
  auto* sums = static_cast<double*>(scratch) + team.rank * draw_sums(n);
  float* w = reinterpret_cast<float*>(static_cast<double*>(scratch) + team.size * draw_sums(n)) +
             team.rank * 2 * draw_floats(n);
  team.each(m, [&](int64_t i) {
    tokens[i] = draw_row(logits + i * ld, n, draws[i], w, w + draw_floats(n), sums);
  });
}
