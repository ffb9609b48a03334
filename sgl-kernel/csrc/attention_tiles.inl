// Attention in AMX tiles: 16 queries meet a packed chunk. The packed form (chunk.inl) is what tiles
// multiply: its units are pairs, its rows their columns. All attention over pairs is done so, also
// that of a single query, in tiles of one row then: how many queries lie together changes no bits.

static constexpr int kTallest = 16;
static constexpr bool in_tiles(Form form) { return paired(form); }

// C [rows, 16 w] += A [rows, 16 steps] B [16 steps, 16 w], or = with `fresh`; A and B in units, as
// many rows as the tiles have.
template <int w>
INLINE void strip(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, int64_t steps,
                  float* c, int64_t ldc, bool fresh) {
  auto each = [&](auto act) {
    act(std::integral_constant<int, 0>());
    if constexpr (w > 1) act(std::integral_constant<int, 1>());
    if constexpr (w > 2) act(std::integral_constant<int, 2>());
    if constexpr (w > 3) act(std::integral_constant<int, 3>());
  };
  each([&](auto t) {
    if (fresh) tile_zero<t>();
    else tile_load<t>(c + 16 * t, 4 * ldc);
  });
  for (int64_t s = 0; s < steps; s++, a += 16, b += 16 * ldb) {
    tile_load<4>(a, 4 * lda);
    each([&](auto t) {
      tile_load<6 + t % 2>(b + 16 * t, 4 * ldb);
      TileBf16::dot<t, 4, 6 + t % 2>();
    });
  }
  each([&](auto t) { tile_store<t>(c + 16 * t, 4 * ldc); });
}

static void tiles_product(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb,
                          int64_t steps, float* c, int64_t ldc, int64_t vectors, bool fresh) {
  for (; vectors >= 4; vectors -= 4, b += 64, c += 64)
    strip<4>(a, lda, b, ldb, steps, c, ldc, fresh);
  for (; vectors > 0; vectors--, b += 16, c += 16) strip<1>(a, lda, b, ldb, steps, c, ldc, fresh);
}

// A record's maximum stays while scores are at most that much above it: weights are numbers up to
// 2^8 then, as precise as those up to 1, and what was summed need not be scaled for every new one.
static constexpr float kSlack = 8.f;

// 2^x within 4e-6 of its value for x <= kSlack, exact at whole numbers; 0 where it would be
// denormal, under Flushed.
static inline F weight_of(F x) {
  constexpr int kDown = 9;  // minus the whole number below
  F r = (F)_mm512_maskz_reduce_ps(0xffff, (__m512)x, kDown);
  F p = splat(1.342668807e-02f);
  p = p * r + splat(5.224246807e-02f);
  p = p * r + splat(2.412802077e-01f);
  p = p * r + splat(6.930448445e-01f);
  p = p * r + splat(1.f);
  return scaled(p, x);
}

// Scores [kChunk] of one query become weights, in pairs; its record learns of a new maximum.
// `whole`: the query sees all keys. Otherwise what is behind the keys may be anything.
template <bool whole>
INLINE void weigh_pairs(const Scores& of, uint64_t seen, const float* scores, const Record& record,
                        float* r, uint32_t* weights) {
  constexpr int kVectors = kChunk / LANES;
  F s[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) {
    s[v] = load(scores + v * LANES);
    if (of.key_scales) s[v] = s[v] * load(of.key_scales + v * LANES);
    if (of.cap != 0) s[v] = splat(of.cap * kLog2E) * tanh(s[v] * splat(1.f / of.cap));
    auto lanes = static_cast<__mmask16>(seen >> (v * LANES));
    if (!whole) s[v] = (F)_mm512_mask_mov_ps((__m512)splat(kUnseen), lanes, (__m512)s[v]);
  }
  float before = record.maximum(r);
  float now = before, top = top_of(max(max(s[0], s[1]), max(s[2], s[3])));
  if (top > before + kSlack) {
    now = top;
    F factor = weight_of(splat(before - now));
    for (int64_t i = 0; i < record.padded + LANES; i += LANES) store(r + i, load(r + i) * factor);
    record.maximum(r) = now;
  }
  F total = load(record.sums(r));
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) {
    F p = weight_of(s[v] - splat(now));
    total = total + p;
    if (of.value_scales) {
      p = p * load(of.value_scales + v * LANES);
      // A scale of what was not finite must not reach queries that do not see it.
      if (!whole) p = s[v] == splat(kUnseen) ? F{} : p;
    }
    *(reinterpret_cast<__m256bh*>(weights) + v) = _mm512_cvtneps_pbh((__m512)p);
  }
  store(record.sums(r), total);
}

static void weigh_pairs(const Scores& of, const Query& query, const float* scores,
                        const Record& record, float* r, uint32_t* weights) {
  int64_t low = query.low > of.begin ? query.low - of.begin : 0, high = query.high - of.begin;
  if (low <= 0 && high >= kChunk) return weigh_pairs<true>(of, 0, scores, record, r, weights);
  uint64_t upto = high >= kChunk ? ~0ull : high > 0 ? (1ull << high) - 1 : 0;
  uint64_t from = low >= kChunk ? 0 : ~0ull << low;
  weigh_pairs<false>(of, upto & from, scores, record, r, weights);
}
