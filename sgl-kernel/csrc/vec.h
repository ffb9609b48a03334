// Vectors of floats as wide as the instruction set of the including file, by the compiler's own
// vector types, so that one source serves every machine. Included inside namespace sgl::<isa>, with
// LANES and REGISTERS (of vectors) defined, behind the target pragma. What needs an instruction by
// name stays behind #if:
//
//   HAVE_DOT     attention multiplies pairs of bf16 (dpbf16ps)
//   HAVE_PAIRS   products do, with the functions of products_x86.inl or products_arm.inl
//   HAVE_QUADS   products multiply quadruples of int8, of which HAVE_SIGNED: the inputs have a sign
//   HAVE_TILES   products and attention in AMX tiles

typedef float F __attribute__((vector_size(4 * LANES), may_alias));
typedef float Fu __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * LANES), may_alias));
typedef uint32_t U __attribute__((vector_size(4 * LANES), may_alias));
typedef uint16_t H __attribute__((vector_size(2 * LANES), may_alias));
typedef uint16_t Hu __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

static inline F load(const float* p) { return *reinterpret_cast<const Fu*>(p); }
static inline void store(float* p, F v) { *reinterpret_cast<Fu*>(p) = v; }
static inline F splat(float x) { return x - F{}; }
static inline F widen(H h) { return (F)(__builtin_convertvector(h, U) << 16); }
static inline F load(const bf16* p) { return widen(*reinterpret_cast<const Hu*>(p)); }
static inline F max(F a, F b) { return a > b ? a : b; }

// To bf16, to nearest, ties to even. NaN stays NaN.
static inline H narrow(F v) {
  U u = (U)v;
  U r = u + 0x7fff + ((u >> 16) & 1);
  r = v == v ? r : u | 0x400000;
  return __builtin_convertvector(r >> 16, H);
}
static inline void store(bf16* p, F v) { *reinterpret_cast<Hu*>(p) = narrow(v); }

// The same as inputs of products take it, by one instruction where there is one, which makes zeros of
// denormal numbers; so do products of pairs.
#if HAVE_DOT
static inline void store_rounded(bf16* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh((__m512)v));
}
#else
static inline void store_rounded(bf16* p, F v) { store(p, v); }
#endif

static inline float widen(bf16 h) {
  uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline bf16 narrow(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if (f != f) return static_cast<bf16>((u | 0x400000) >> 16);
  return static_cast<bf16>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// Lanes in pairs, the same tree on every call: a sum never depends on where it is computed.
static inline float sum(F v) {
  float a[LANES];
  memcpy(a, &v, sizeof a);
  for (int step = LANES / 2; step > 0; step /= 2)
    for (int i = 0; i < step; i++) a[i] += a[i + step];
  return a[0];
}
static inline float highest(F v) {
  float a[LANES];
  memcpy(a, &v, sizeof a);
  for (int step = LANES / 2; step > 0; step /= 2)
    for (int i = 0; i < step; i++) a[i] = a[i] > a[i + step] ? a[i] : a[i + step];
  return a[0];
}

// The first n < LANES floats, zeros behind them; and their store.
static inline F load_part(const float* p, int64_t n) {
  float a[LANES] = {};
  memcpy(a, p, static_cast<size_t>(n) * 4);
  return load(a);
}
static inline void store_part(float* p, F v, int64_t n) {
  memcpy(p, &v, static_cast<size_t>(n) * 4);
}

// x to the nearest whole number, |x| < 2^22; and p * 2^n for such a number n, where the outcome is
// neither denormal nor beyond all floats.
#if LANES == 16
// Masked by all lanes: without a mask gcc 12 warns of its own header.
static inline F whole(F x) { return (F)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, 0); }
static inline F scaled(F p, F n) { return (F)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n); }
#else
constexpr float kShift = 12582912.f;  // 1.5 * 2^23: what is added is rounded
static inline F whole(F x) { return x + splat(kShift) - splat(kShift); }
static inline F scaled(F p, F n) {
  F y = (F)((U)p + ((U)(n + splat(kShift)) << 23));
  return p == p ? y : p;  // a NaN's bits could become a number's
}
#endif

// e^x to about 1 ulp for x <= 88; 0 below -87.3. Cephes' polynomial on [-ln 2 / 2, ln 2 / 2].
static inline F exp(F x) {
  const F low = splat(-87.3f), high = splat(88.f);
  F clipped = low > x ? low : x;  // NaN stays, here and below
  clipped = high < clipped ? high : clipped;
  F k = whole(clipped * splat(1.44269504088896341f));
  F r = clipped - k * splat(0.693359375f) - k * splat(-2.12194440e-4f);
  F p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.f);
  return x < low ? F{} : scaled(p, k);
}
