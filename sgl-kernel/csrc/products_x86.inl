// Products of pairs and quadruples by AVX-512's instructions (see gemm_steps.inl).

INLINE F dword_in_all(const uint8_t* x) {
  int32_t d;
  memcpy(&d, x, 4);
  return (F)_mm512_set1_epi32(d);
}

INLINE F add_pairs(F sum, F w, F x) {
  return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
}
// x without a sign, in int32.
INLINE F add_quads(F sum, F w, F x) {
  return (F)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
}

// Pairs of bf16: 2 LANES int8, which are bf16 numbers without rounding.
INLINE F pairs_of_bytes(const uint8_t* w) {
  const __m128i* at = reinterpret_cast<const __m128i*>(w);
  __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
  __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at + 1)));
  return (F)_mm512_cvtne2ps_pbh(high, low);
}

// -8..7 as bf16, looked up by the low five bits of a word, of which the last does not count.
// clang-format off
alignas(64) constexpr uint16_t kNibbles[32] = {
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0, 0x3f80, 0x4000,
    0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
    0xc000, 0xbf80, 0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
// clang-format on

// Pairs of bf16: nibble v of each half of the dwords, less 8.
INLINE F pairs_of_nibbles(U dwords, int v) {
  __m512i words = _mm512_srli_epi16((__m512i)dwords, 4 * v);
  return (F)_mm512_permutexvar_epi16(words, _mm512_load_si512(kNibbles));
}
