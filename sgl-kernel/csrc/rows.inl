// Row by row: RMSNorm and gated activations. Sampling: draw.inl.
#include "activation.inl"
#include "norm.inl"

static void norm(Team& team, const Norm& norm, const float* x, int64_t ldx, int64_t m, int64_t n,
                 float* y, int64_t ldy) {
  Range mine = team.part(m);
  for (int64_t i = mine.begin; i < mine.end; i++)
    norm_row(x + i * ldx, norm.gain, norm.eps, n, y + i * ldy);
}

template <Activation act>
static void gate_part(const float* x, int64_t n, float* y, Range range) {
  int64_t i = range.begin;
  for (; i + LANES <= range.end; i += LANES)
    store(y + i, activate(act, load(x + i)) * load(x + n + i));
  if (int64_t left = range.end - i; left > 0)
    store_part(y + i, activate(act, load_part(x + i, left)) * load_part(x + n + i, left), left);
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
    }
  }
}

#include "draw.inl"
