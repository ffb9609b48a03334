// Row by row: norms, activations, sums of log-probabilities. Sampling: draw.inl.
#include "activation.inl"
#include "norm.inl"

static void norm(Team& team, const FullNorm& norm, const float* x, int64_t ldx, int64_t m,
                 int64_t n, float* y, int64_t ldy) {
  Range mine = team.part(m);
  for (int64_t i = mine.begin; i < mine.end; i++) norm_full(norm, x + i * ldx, n, y + i * ldy);
}

template <Activation act>
static void gate_part(const float* x, int64_t n, float* y, Range range) {
  int64_t i = range.begin;
  for (; i + LANES <= range.end; i += LANES) store(y + i, gated(act, load(x + i), load(x + n + i)));
  if (int64_t left = range.end - i; left > 0)
    store_part(y + i, gated(act, load_part(x + i, left), load_part(x + n + i, left)), left);
}

static void gate(Team& team, Activation act, const float* x, int64_t ldx, int64_t m, int64_t n,
                 float* y, int64_t ldy) {
  constexpr int64_t kPiece = 16 * LANES;  // few rows are shared among members all the same
  int64_t pieces = (n + kPiece - 1) / kPiece;
  Range mine = team.part(m * pieces);
  for (int64_t p = mine.begin; p < mine.end; p++) {
    int64_t row = p / pieces, begin = p % pieces * kPiece;
    Range range{begin, begin + kPiece < n ? begin + kPiece : n};
    const float* from = x + row * ldx;
    float* to = y + row * ldy;
    switch (act) {
      case Activation::SILU: gate_part<Activation::SILU>(from, n, to, range); break;
      case Activation::GELU: gate_part<Activation::GELU>(from, n, to, range); break;
      case Activation::GELU_TANH: gate_part<Activation::GELU_TANH>(from, n, to, range); break;
      case Activation::RELU: gate_part<Activation::RELU>(from, n, to, range); break;
      case Activation::CLAMPED_SWIGLU:
        gate_part<Activation::CLAMPED_SWIGLU>(from, n, to, range);
        break;
    }
  }
}

template <Activation act>
static void activate_part(float* x, int64_t n) {
  const F one = splat(1.f);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(x + i, gated(act, load(x + i), one));
  if (int64_t left = n - i; left > 0)
    store_part(x + i, gated(act, load_part(x + i, left), one), left);
}

static void activate(Team& team, Activation act, float* x, int64_t ldx, int64_t m, int64_t n) {
  Range mine = team.part(m);
  for (int64_t r = mine.begin; r < mine.end; r++) {
    float* row = x + r * ldx;
    switch (act) {
      case Activation::SILU: activate_part<Activation::SILU>(row, n); break;
      case Activation::GELU: activate_part<Activation::GELU>(row, n); break;
      case Activation::GELU_TANH: activate_part<Activation::GELU_TANH>(row, n); break;
      case Activation::RELU: activate_part<Activation::RELU>(row, n); break;
      case Activation::CLAMPED_SWIGLU: break;  // of pairs alone
    }
  }
}

// Sums of 32 vectors in float32, of these in float64.
static double exp_sum(const float* x, int64_t n, F peak) {
  constexpr int kWide = 4;
  constexpr int64_t kPiece = 32 * LANES;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    int64_t end = begin + kPiece < n ? begin + kPiece : n, i = begin;
    F part[kWide] = {};
    for (; i + kWide * LANES <= end; i += kWide * LANES)
      for (int v = 0; v < kWide; v++) part[v] = part[v] + exp(load(x + i + v * LANES) - peak);
    for (; i + LANES <= end; i += LANES) part[0] = part[0] + exp(load(x + i) - peak);
    total += static_cast<double>(sum((part[0] + part[1]) + (part[2] + part[3])));
    for (; i < end; i++)
      total += std::exp(static_cast<double>(x[i]) - static_cast<double>(peak[0]));
  }
  return total;
}

static void log_sums(Team& team, const float* logits, int64_t ld, int64_t m, int64_t n,
                     float* largest, double* sums) {
  Range mine = team.part(m);
  for (int64_t r = mine.begin; r < mine.end; r++) {
    const float* row = logits + r * ld;
    F top = splat(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) top = max(top, load(row + i));
    float peak = highest(top);
    for (; i < n; i++) peak = peak > row[i] ? peak : row[i];
    largest[r] = peak;
    sums[r] = std::log(exp_sum(row, n, splat(peak)));
  }
}

#include "draw.inl"
