// RMSNorm (Zhang and Sennrich 2019) of one row, for products and heads, and either norm by itself.
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

// mean((x - mean)^2) of k floats.
static float variance(const float* x, int64_t k, float mean) {
  F total{};
  int64_t i = 0;
  for (; i + LANES <= k; i += LANES) {
    F p = load(x + i) - splat(mean);
    total += p * p;
  }
  float rest = 0;
  for (; i < k; i++) rest += (x[i] - mean) * (x[i] - mean);
  return (sum(total) + rest) / static_cast<float>(k);
}

static float mean_of(const float* x, int64_t k) {
  F total{};
  int64_t i = 0;
  for (; i < k; i += LANES) total += k - i >= LANES ? load(x + i) : load_part(x + i, k - i);
  return sum(total) / static_cast<float>(k);
}

// A norm by itself, of n floats; y may be x.
static void norm_full(const FullNorm& p, const float* x, int64_t n, float* y) {
  const float mean = p.centred ? mean_of(x, n) : 0;
  const F middle = splat(mean);
  const F factor =
      splat(p.centred ? 1 / std::sqrt(variance(x, n, mean) + p.eps) : norm_factor(x, n, p.eps));
  for (int64_t i = 0; i < n; i += LANES) {
    const int64_t left = n - i;
    auto get = [&](const float* from) {
      return left >= LANES ? load(from + i) : load_part(from + i, left);
    };
    F v = (get(x) - middle) * factor * get(p.gain);
    if (p.bias) v += get(p.bias);
    if (p.add) v += get(y);
    if (left >= LANES) store(y + i, v);
    else store_part(y + i, v, left);
  }
}

#endif  // SGL_NORM
