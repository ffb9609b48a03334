// Products of pairs and quadruples by Arm's instructions (see gemm_steps.inl).

INLINE F dword_in_all(const uint8_t* x) {
  int32_t d;
  memcpy(&d, x, 4);
  return (F)vdupq_n_s32(d);
}

INLINE F add_quads(F sum, F w, F x) {
  return (F)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
}

#if HAVE_PAIRS
INLINE F add_pairs(F sum, F w, F x) {
  bfloat16x8_t a = vreinterpretq_bf16_f32((float32x4_t)w);
  return (F)vbfdotq_f32((float32x4_t)sum, a, vreinterpretq_bf16_f32((float32x4_t)x));
}

// Whole numbers up to 127 as bf16: the upper halves of floats.
INLINE F pairs_of_words(int16x8_t q) {
  float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(q)));
  float32x4_t high = vcvtq_f32_s32(vmovl_s16(vget_high_s16(q)));
  return (F)vuzp2q_u16(vreinterpretq_u16_f32(low), vreinterpretq_u16_f32(high));
}

// Pairs of bf16: 2 LANES int8.
INLINE F pairs_of_bytes(const uint8_t* w) {
  return pairs_of_words(vmovl_s8(vreinterpret_s8_u8(vld1_u8(w))));
}

// Pairs of bf16: nibble v of each half of the dwords, less 8.
INLINE F pairs_of_nibbles(U dwords, int v) {
  uint16x8_t words = vshlq_u16((uint16x8_t)dwords, vdupq_n_s16(static_cast<int16_t>(-4 * v)));
  int16x8_t nibbles = vreinterpretq_s16_u16(vandq_u16(words, vdupq_n_u16(15)));
  return pairs_of_words(vsubq_s16(nibbles, vdupq_n_s16(8)));
}
#endif
