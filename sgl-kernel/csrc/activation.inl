// Activations on vectors: what the gate of a feed-forward layer goes through, by itself (rows.inl)
// or as the end of a matrix product (gemm.inl), and tanh, which also caps the scores of attention.
#ifndef SGL_ACTIVATION
#define SGL_ACTIVATION

// tanh x within 2 ulp. Cephes' polynomial below 0.625, where the other form would cancel.
static inline F tanh(F x) {
  F a = x < splat(0.f) ? -x : x;
  F z = x * x;
  F p = splat(-5.70498872745e-3f);
  p = p * z + splat(2.06390887954e-2f);
  p = p * z + splat(-5.37397155531e-2f);
  p = p * z + splat(1.33314422036e-1f);
  p = p * z + splat(-3.33332819422e-1f);
  F small = p * z * x + x;
  F large = splat(1.f) - splat(2.f) / (exp(a + a) + splat(1.f));
  large = x < splat(0.f) ? -large : large;
  return a > splat(0.625f) ? large : small;
}

// erfc x for x >= 0 within 1e-5 of its value (down to e^-87): t exp(-x^2 + polynomial of t),
// t = 1 / (1 + x / 2), after Press et al., Numerical Recipes, 6.2.
static inline F erfc_positive(F x) {
  F t = splat(1.f) / (x * splat(.5f) + splat(1.f));
  F p = splat(0.17087277f);
  p = p * t + splat(-0.82215223f);
  p = p * t + splat(1.48851587f);
  p = p * t + splat(-1.13520398f);
  p = p * t + splat(0.27886807f);
  p = p * t + splat(-0.18628806f);
  p = p * t + splat(0.09678418f);
  p = p * t + splat(0.37409196f);
  p = p * t + splat(1.00002368f);
  p = p * t + splat(-1.26551223f);
  return t * exp(p - x * x);
}

static inline F silu(F x) { return x / (exp(-x) + splat(1.f)); }

// x * Phi(x), Phi the normal distribution: no cancellation far below 0.
static inline F gelu(F x) {
  F z = x * splat(0.70710678118654752f);
  F tail = erfc_positive(z < splat(0.f) ? -z : z) * splat(.5f);
  return x * (x < splat(0.f) ? tail : splat(1.f) - tail);
}

// x / 2 * (1 + tanh(u)) is x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
static inline F gelu_tanh(F x) {
  F u = x * (x * x * splat(0.044715f) + splat(1.f)) * splat(1.5957691216057308f);
  return x / (exp(-u) + splat(1.f));
}

static inline F relu(F x) { return x > splat(0.f) ? x : x == x ? F{} : x; }

static inline F activate(Activation act, F x) {
  switch (act) {
    case Activation::SILU: return silu(x);
    case Activation::GELU: return gelu(x);
    case Activation::GELU_TANH: return gelu_tanh(x);
    default: return relu(x);
  }
}

// What a gate makes of `up`.
static inline F gated(Activation act, F gate, F up) {
  if (act != Activation::CLAMPED_SWIGLU) return activate(act, gate) * up;
  const F limit = splat(7.f);  // comparisons that leave NaN as it is
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return gate / (exp(gate * splat(-1.702f)) + splat(1.f)) * (up + splat(1.f));
}

#endif  // SGL_ACTIVATION
