// RMSNorm (Zhang and Sennrich 2019) of one row, for products, heads and the operation of that name.
#ifndef SGL_NORM
#define SGL_NORM

// rsqrt(mean(x^2) + eps) of k floats.
static float norm_factor(const float* x, int64_t k, float eps) {
  F a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * LANES <= k; i += 4 * LANES) {
    F p = load(x + i), q = load(x + i + LANES);
    F r = load(x + i + 2 * LANES), s = load(x + i + 3 * LANES);
    a += p * p, b += q * q, c += r * r, d += s * s;
  }
  for (; i < k; i += LANES) {
    F p = k - i >= LANES ? load(x + i) : load_part(x + i, k - i);
    a += p * p;
  }
  return 1 / std::sqrt(sum((a + b) + (c + d)) / static_cast<float>(k) + eps);
}

// y = x * norm_factor(x) * gain, n floats; y may be x.
static void norm_row(const float* x, const float* gain, float eps, int64_t n, float* y) {
  F factor = splat(norm_factor(x, n, eps));
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(y + i, load(x + i) * factor * load(gain + i));
  if (int64_t left = n - i; left > 0)
    store_part(y + i, load_part(x + i, left) * factor * load_part(gain + i, left), left);
}

#endif  // SGL_NORM
