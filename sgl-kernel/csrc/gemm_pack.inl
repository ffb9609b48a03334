// Packing: from rows of float32 or bf16 to the blocks of gemm_layout.inl, quantised on the way.
//
// int8: scale = max |w| / 127 over the row, to nearest, ties away from zero. 4 bits: -8..7 times a
// scale of five significant bits, so that weight times scale is a bf16 without rounding; of the
// scales near max |w| / 8, of both signs, the one with the smallest squared error. A row (group)
// with a NaN or an infinity in it has the scale NaN, so that it does not go unseen.
//
// What was quantised elsewhere comes as integers with scales, and stays what it is (pack_integers).

constexpr int64_t STRIP = 128;  // inputs that are packed at a time; the largest group of W4
constexpr float TINY = 7.8886090522e-31f;  // 2^-100: rows with no value above it count as zeros

static inline F magnitude(F v) { return (F)((U)v & 0x7fffffff); }

// max |x| of n floats; NaN where one is not finite.
static float peak(const float* x, int64_t n) {
  F top{};
  U bad{};
  for (int64_t i = 0; i < n; i += LANES) {
    F v = magnitude(n - i >= LANES ? load(x + i) : load_part(x + i, n - i));
    top = max(v, top);
    bad |= (U)((U)v >= 0x7f800000);
  }
  float flag = highest((F)(bad & 0x3f800000));
  return flag > 0 ? NAN : highest(top);
}

// The scale of a row whose largest magnitude is `top`, and its inverse.
static inline float scale_of(float top) { return top != top || top > TINY ? top / 127 : 0; }
static inline float inverse_of(float top) { return top > TINY ? 127 / top : 0; }

// x to the nearest integer, ties away from zero, |x| <= 128 or so. Made so that no multiplication
// before it can be fused with an addition in it: all instruction sets round alike.
static inline I nearest(F x) {
  I whole = __builtin_convertvector(x, I);
  F rest = x - __builtin_convertvector(whole, F);
  return whole - (I)(rest >= splat(.5f)) + (I)(rest <= splat(-.5f));
}

// A part of a row as floats, zeros behind its end and where there is no row.
static void fetch(const void* src, Type type, int64_t ld, int64_t row, int64_t begin, int64_t end,
                  int64_t count, float* to) {
  int64_t i = 0;
  if (row >= 0 && type == Type::F32) {
    const float* from = static_cast<const float*>(src) + row * ld + begin;
    for (; i < count && begin + i < end; i++) to[i] = from[i];
  } else if (row >= 0) {
    const bf16* from = static_cast<const bf16*>(src) + row * ld + begin;
    for (; i < count && begin + i < end; i++) to[i] = widen(from[i]);
  }
  for (; i < count; i++) to[i] = 0;
}

static float squared_error(const float* x, int64_t n, float scale) {
  F total{}, s = splat(scale), inverse = splat(1 / scale);
  for (int64_t i = 0; i < n; i += LANES) {
    F v = load(x + i), q = __builtin_convertvector(nearest(v * inverse), F);
    q = max(q, splat(-8.f));
    q = q < splat(7.f) ? q : splat(7.f);
    F off = v - q * s;
    total += off * off;
  }
  return sum(total);
}

// The scale for n (a multiple of 16) weights of W4: from max / 6 down to max / 9, in steps of the
// last of five significant bits.
static float best_scale(const float* x, int64_t n) {
  float top = peak(x, n);
  if (top != top) return top;
  if (top <= TINY) return 0;
  float best = 0, least = INFINITY;
  uint32_t bits;
  float first = top / 6, last = top / 9;
  memcpy(&bits, &first, 4);
  for (bits &= 0xfff80000;; bits -= 0x80000) {
    float scale;
    memcpy(&scale, &bits, 4);
    if (scale < last) break;
    for (int sign = 0; sign < 2; sign++, scale = -scale) {
      float error = squared_error(x, n, scale);
      if (error < least || best == 0) least = error, best = scale;
    }
  }
  return best;
}

// Column j of a strip: `count` inputs as integers; nibbles lie in zeroed memory.
static void place(const Layout& l, int64_t j, const int32_t* q, int64_t count, uint8_t* to) {
  if (!nibbles(l.format)) {
    int64_t in = l.inputs;
    for (int64_t i = 0; i < count; i++)
      to[(i / in * NB + j) * in + i % in] = static_cast<uint8_t>(q[i]);
    return;
  }
  uint32_t* to_dword = reinterpret_cast<uint32_t*>(to);
  for (int64_t i = 0; i < count; i++) {
    int32_t clipped = q[i] < -8 ? -8 : q[i] > 7 ? 7 : q[i];
    uint32_t nibble = static_cast<uint32_t>(clipped + 8);
    to_dword[i / 2 * LANES + j % LANES] |= nibble << (i % 2 * 16 + j / LANES * 4);
  }
}

// One strip of a block: `count` inputs of NB columns, as floats with the scales in `inverse`.
static void pack_strip(const Layout& l, const float (*x)[STRIP], const float* inverse,
                       int64_t count, uint8_t* to) {
  float* to_f32 = reinterpret_cast<float*>(to);
  bf16* to_bf16 = reinterpret_cast<bf16*>(to);
  alignas(64) int32_t q[STRIP];
  if (l.format == Format::W4) memset(to, 0, static_cast<size_t>(count / 2 * NB));
  for (int64_t j = 0; j < NB; j++) {
    if (l.format == Format::F32) {
      for (int64_t i = 0; i < count; i++) to_f32[i * NB + j] = x[j][i];
      continue;
    }
    if (l.format == Format::BF16) {
      for (int64_t i = 0; i < count; i++) to_bf16[(i / 2 * NB + j) * 2 + i % 2] = narrow(x[j][i]);
      continue;
    }
    for (int64_t i = 0; i < count; i += LANES)
      *reinterpret_cast<I*>(q + i) = nearest(load(x[j] + i) * splat(inverse[j]));
    place(l, j, q, count, to);
  }
}

// What W8A8 knows of its columns beside their scales.
static void sum_columns(const Layout& l, uint8_t* block) {
  int32_t* sums = reinterpret_cast<int32_t*>(block + 4 * NB);
  for (int64_t j = 0; j < NB; j++) sums[j] = 0;
  const int8_t* q = reinterpret_cast<const int8_t*>(block + l.head);
  for (int64_t s = 0; s < l.steps; s++)
    for (int64_t j = 0; j < NB; j++)
      for (int64_t i = 0; i < l.inputs; i++) sums[j] += *q++;
}

// Scales of int8 rows, into the head of the block; their inverses for pack_strip.
static void pack_scales(const Layout& l, const void* src, Type type, int64_t ld, int64_t block,
                        float* inverse, uint8_t* head) {
  alignas(64) float part[STRIP];
  for (int64_t j = 0; j < NB; j++) {
    float top = 0;
    for (int64_t i = 0; i < l.k; i += STRIP) {
      fetch(src, type, ld, l.source(block, j), i, l.k, STRIP, part);
      float here = peak(part, STRIP);
      top = top != top || here != here ? NAN : here > top ? here : top;
    }
    inverse[j] = inverse_of(top);
    reinterpret_cast<float*>(head)[j] = scale_of(top);
  }
}

static void pack_block(const Layout& l, const void* src, Type type, int64_t ld, int64_t block,
                       uint8_t* to) {
  alignas(64) float x[NB][STRIP];
  float inverse[NB];
  bool int8 = l.format == Format::W8 || l.format == Format::W8A8;
  if (int8) pack_scales(l, src, type, ld, block, inverse, to);
  int64_t strip = l.format == Format::W4 ? l.group_steps * 2 : STRIP;
  int64_t padded = l.steps * l.inputs;
  for (int64_t i = 0; i < padded; i += strip) {
    int64_t count = padded - i < strip ? padded - i : strip;
    for (int64_t j = 0; j < NB; j++) fetch(src, type, ld, l.source(block, j), i, l.k, strip, x[j]);
    uint8_t* at = to + (l.at(to, 0, i / l.inputs) - to);
    if (l.format == Format::W4) {
      for (int64_t j = 0; j < NB; j++) {
        float scale = best_scale(x[j], strip);
        inverse[j] = scale == scale && scale != 0 ? 1 / scale : 0;
        reinterpret_cast<bf16*>(at - l.head)[j] = narrow(scale);
      }
    }
    pack_strip(l, x, inverse, count, at);
  }
  if (l.format == Format::W8A8) sum_columns(l, to);
}

// float16 by arithmetic that every instruction set has: with the exponent in place the number is
// 2^112 times too small. For numbers without infinities, of which the caller sees to it.
static inline F widen_half(H h) {
  U u = __builtin_convertvector(h, U);
  F f = (F)((u & 0x7fff) << 13) * splat(5.192296858534828e33f);
  return (F)((U)f | (u & 0x8000) << 16);
}
static inline uint16_t narrow_half(float f) {  // one that is a float16
  float small = std::fabs(f) * 1.925929944387236e-34f;
  uint32_t bits;
  memcpy(&bits, &small, 4);
  return static_cast<uint16_t>(bits >> 13 | (std::signbit(f) ? 0x8000 : 0));
}

// Of one group and all columns of a block: weight = scale * q + low.
struct Scaling {
  alignas(64) float scale[NB], low[NB];
};

static inline void read_scaling(const Layout& l, const uint8_t* head, Scaling& to) {
  typedef int8_t Q __attribute__((vector_size(LANES), aligned(1), may_alias));
  const float* floats = reinterpret_cast<const float*>(head);
  for (int64_t j = 0; j < NB; j += LANES) {
    if (has_zeros(l.format)) {
      F scale = widen_half(*reinterpret_cast<const Hu*>(head + 2 * j));
      I zeros = __builtin_convertvector(*reinterpret_cast<const Q*>(head + 2 * NB + j), I);
      store(to.scale + j, scale);
      store(to.low + j, scale * __builtin_convertvector(zeros, F));
    } else {
      store(to.scale + j, load(floats + j));
      store(to.low + j, load(floats + NB + j));
    }
  }
}

static void write_scaling(const Layout& l, uint8_t* head, int64_t j, float scale, float low) {
  if (has_zeros(l.format)) {
    reinterpret_cast<uint16_t*>(head)[j] = narrow_half(scale);
    head[2 * NB + j] = static_cast<uint8_t>(static_cast<int32_t>(low));
    return;
  }
  reinterpret_cast<float*>(head)[j] = scale;
  if (affine(l.format)) reinterpret_cast<float*>(head)[NB + j] = low;
}

static void pack_integers(Team& team, const Matrix& w, const int8_t* q, int64_t ld,
                          const float* scales, const float* lows, void* dst) {
  Layout l = layout(w);
  if (team.rank == 0) ask_huge_pages(dst, packed_bytes(w.format, w.n, w.k, w.group));
  team.barrier();
  bool grouped = affine(l.format);
  int64_t groups = grouped ? ceil_div(l.k, w.group) : 1, padded = l.steps * l.inputs;
  int64_t strip = grouped ? w.group : STRIP;
  team.each(l.blocks, [&](int64_t block) {
    uint8_t* to = static_cast<uint8_t*>(dst) + block * l.block_bytes;
    for (int64_t begin = 0; begin < padded || begin == 0; begin += strip) {
      int64_t count = padded - begin < strip ? padded - begin : strip;
      int64_t group = grouped ? begin / w.group : 0;
      uint8_t* at = to + (l.at(to, 0, begin / l.inputs) - to);
      if (nibbles(l.format)) memset(at, 0, static_cast<size_t>(count / 2 * NB));
      for (int64_t j = 0; j < NB; j++) {
        int64_t row = l.source(block, j), index = row * groups + group;
        if (grouped || begin == 0)
          write_scaling(l, at - l.head, j, row < 0 ? 0 : scales[index],
                        row < 0 || !lows ? 0 : lows[index]);
        int32_t part[STRIP];
        for (int64_t i = 0; i < count; i++)
          part[i] = row >= 0 && begin + i < l.k ? q[row * ld + begin + i] : 0;
        place(l, j, part, count, at);
      }
      if (padded == 0) break;
    }
    if (l.format == Format::W8A8) sum_columns(l, to);
  });
}

static void pack(Team& team, const Matrix& w, const void* src, Type type, int64_t ld, void* dst) {
  Layout l = layout(w);
  if (team.rank == 0) ask_huge_pages(dst, packed_bytes(w.format, w.n, w.k, w.group));
  team.barrier();
  team.each(l.blocks, [&](int64_t block) {
    pack_block(l, src, type, ld, block, static_cast<uint8_t*>(dst) + block * l.block_bytes);
  });
}

// Column j of a block whose scales are those of groups.
static void unpack_groups(const Layout& l, const uint8_t* block, int64_t j, float* y) {
  Scaling of;
  float scale = 0, low = 0;
  for (int64_t i = 0; i < l.k; i++) {
    int64_t s = i / 2;
    const uint8_t* at = l.at(block, 0, s);
    if (i % 2 == 0 && s % l.group_steps == 0) {
      scale = l.format == Format::W4 ? widen(reinterpret_cast<const bf16*>(at - l.head)[j]) : 0;
      if (affine(l.format)) read_scaling(l, at - l.head, of), scale = of.scale[j], low = of.low[j];
    }
    int32_t q;
    if (nibbles(l.format)) {
      uint32_t dword;
      memcpy(&dword, at + j % LANES * 4, 4);
      q = static_cast<int32_t>(dword >> (i % 2 * 16 + j / LANES * 4) & 15) - 8;
    } else {
      q = static_cast<int8_t>(at[j * 2 + i % 2]);
    }
    y[i] = static_cast<float>(q) * scale + low;
  }
}

static void unpack(const Matrix& w, int64_t index, float* y) {
  Layout l = layout(w);
  int64_t half = w.paired && index >= l.outputs, column = index - half * l.outputs;
  int64_t block = column / l.width, j = column % l.width + half * l.width;
  const uint8_t* start = static_cast<const uint8_t*>(w.data) + block * l.block_bytes;
  const uint8_t* steps = start + l.head;
  switch (w.format) {
    case Format::F32:
      for (int64_t i = 0; i < l.k; i++) y[i] = reinterpret_cast<const float*>(steps)[i * NB + j];
      return;
    case Format::BF16: {
      const bf16* pairs = reinterpret_cast<const bf16*>(steps) + 2 * j;
      for (int64_t i = 0; i < l.k; i++) y[i] = widen(pairs[i / 2 * 2 * NB + i % 2]);
      return;
    }
    case Format::W4:
    case Format::W4Z:
    case Format::W4M:
    case Format::W8Z:
    case Format::W8M: return unpack_groups(l, start, j, y);
    default: {
      const int8_t* q = reinterpret_cast<const int8_t*>(steps) + l.inputs * j;
      float scale = reinterpret_cast<const float*>(start)[j];
      for (int64_t i = 0; i < l.k; i++)
        y[i] = q[i / l.inputs * l.inputs * NB + i % l.inputs] * scale;
    }
  }
}
