// The steps of a product: how a step's weights and inputs become vectors, and the loop over steps
// that keeps R rows x NV vectors of sums in registers.
//
// The order of additions is part of the contract: a sum starts at 0 and takes the inputs one after
// the other, by the same instructions for every R, so that its bits do not depend on how many rows
// there are. Where sums pause (end of a chunk) they are stored as they are and loaded again.
//
// A kind of step has: BYTES of packed weights; XBYTES of x; PARTS, how many inputs follow one
// another in it; weight(w, v, part), vector v of the weights; input(x, part), x in all lanes; and
// mad. `Wide` is the kind that its weights are expanded to where several tiles of rows use them.

#define INLINE static inline __attribute__((always_inline))

constexpr int MR = REGISTERS >= 32 ? 6 : 3;  // rows: MR * NV sums and a few more fit the registers

INLINE float float_at(const uint8_t* p) {
  float f;
  memcpy(&f, p, 4);
  return f;
}
INLINE U vector_at(const uint8_t* p, int64_t v) {
  return (U)load(reinterpret_cast<const float*>(p) + v * LANES);
}

struct StepF32 {
  using Wide = StepF32;
  static constexpr int BYTES = 4 * NB, XBYTES = 4, PARTS = 1;
  INLINE F weight(const uint8_t* w, int v, int) { return (F)vector_at(w, v); }
  INLINE F input(const uint8_t* x, int) { return splat(float_at(x)); }
  INLINE F mad(F sum, F w, F x) { return sum + w * x; }
};

#if HAVE_QUADS
#if defined(__aarch64__)
#include "products_arm.inl"
#else
#include "products_x86.inl"
#endif
#endif

#if HAVE_PAIRS
struct StepBf16 {
  using Wide = StepBf16;
  static constexpr int BYTES = 4 * NB, XBYTES = 4, PARTS = 1;
  INLINE F weight(const uint8_t* w, int v, int) { return (F)vector_at(w, v); }
  INLINE F input(const uint8_t* x, int) { return dword_in_all(x); }
  INLINE F mad(F sum, F w, F x) { return add_pairs(sum, w, x); }
};

struct StepW8 : StepBf16 {
  static constexpr int BYTES = 2 * NB;
  INLINE F weight(const uint8_t* w, int v, int) { return pairs_of_bytes(w + v * 2 * LANES); }
};

struct StepW4 : StepBf16 {
  static constexpr int BYTES = NB;
  INLINE F weight(const uint8_t* w, int v, int) { return pairs_of_nibbles(vector_at(w, 0), v); }
};

#else  // floats all through: an input and its weights are widened

// Two inputs a step; the expanded form is two steps of floats.
struct Pairs : StepF32 {
  static constexpr int XBYTES = 8, PARTS = 2;
  INLINE F input(const uint8_t* x, int part) { return splat(float_at(x + 4 * part)); }
};

struct StepBf16 : Pairs {
  INLINE F weight(const uint8_t* w, int v, int part) {
    U both = vector_at(w, v);
    return part ? (F)(both & 0xffff0000) : (F)(both << 16);
  }
};

struct StepW8 : Pairs {
  static constexpr int BYTES = 2 * NB;
  INLINE F weight(const uint8_t* w, int v, int part) {
    H both = *reinterpret_cast<const Hu*>(w + v * 2 * LANES);
    I q = (I)(__builtin_convertvector(both, U) << (part ? 16 : 24)) >> 24;
    return __builtin_convertvector(q, F);
  }
};

struct StepW4 : Pairs {
  static constexpr int BYTES = NB;
  INLINE F weight(const uint8_t* w, int v, int part) {
    I q = (I)(vector_at(w, 0) >> (16 * part + 4 * v) & 15) - 8;
    return __builtin_convertvector(q, F);
  }
};
#endif

#if HAVE_QUADS
// Sums are int32 in the guise of floats.
struct StepW8A8 {
  using Wide = StepW8A8;
  static constexpr int BYTES = 4 * NB, XBYTES = 4, PARTS = 1;
  INLINE F weight(const uint8_t* w, int v, int) { return (F)vector_at(w, v); }
  INLINE F input(const uint8_t* x, int) { return dword_in_all(x); }
  INLINE F mad(F sum, F w, F x) { return add_quads(sum, w, x); }
};
#else
using StepW8A8 = StepW8;
#endif

// What happens to the sums at the end of a chunk.
//   CARRY  they go on from what is stored
//   SCALE  stored += scale of the column * sum; scales in front of the chunk (W4)
//   AFFINE the same with floats for scales; lows are added behind it (add_lows)
//   COUNT  stored, an int32, += sum, a float that is an integer below 2^24 (W8A8 without dpbusd)
enum class End { CARRY, SCALE, AFFINE, COUNT };

// stored += low of the column * sum of the row's inputs in the group, totals ldx apart. A function
// of its own: where two products meet in one sum, which of them is fused with the addition would
// differ from tile to tile.
static __attribute__((noinline)) void add_lows(int64_t rows, const float* lows,
                                               const uint8_t* totals, int64_t ldx, float* sums) {
  for (int64_t r = 0; r < rows; r++, totals += ldx, sums += NB) {
    F total = splat(float_at(totals));
    for (int64_t j = 0; j < NB; j += LANES)
      store(sums + j, load(sums + j) + load(lows + j) * total);
  }
}

// What is brought into the second cache meanwhile, for when it is needed: some cache lines from
// `at` on with every step.
struct Fetch {
  const uint8_t* at;
  int64_t lines;
};

constexpr int64_t AHEAD = 4096;  // bytes, where weights stream through once

// R rows x NB columns over `steps`. sums: [R][NB]. ONCE: no other rows use these weights, so that
// those AHEAD of them come into the first cache. In few instructions: with the loop of the other
// case the processor has a quarter fewer bytes under way.
template <class S, End END, bool ONCE, int R>
static void tile(const uint8_t* w, const uint8_t* x, int64_t ldx, int64_t steps, Fetch fetch,
                 const void* scales, float* sums, bool fresh) {
  const float* scale = static_cast<const float*>(scales);
  F s[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++)
      s[r][v] = END == End::CARRY && !fresh ? load(sums + r * NB + v * LANES) : F{};
  for (int64_t i = 0; i < steps; i++) {
    if (ONCE) {
#pragma GCC unroll 8
      for (int line = 0; line < S::BYTES / 64; line++)
        __builtin_prefetch(w + AHEAD + 64 * line, 0, 3);
    } else {
      for (int64_t line = 0; line < fetch.lines; line++, fetch.at += 64)
        __builtin_prefetch(fetch.at, 0, 2);
    }
#pragma GCC unroll 2
    for (int part = 0; part < S::PARTS; part++) {
      if constexpr (REGISTERS >= 32) {
        F ws[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) ws[v] = S::weight(w, v, part);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          F in = S::input(x + r * ldx, part);
#pragma GCC unroll 8
          for (int v = 0; v < NV; v++) s[r][v] = S::mad(s[r][v], ws[v], in);
        }
      } else {
        F in[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) in[r] = S::input(x + r * ldx, part);
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
          F weight = S::weight(w, v, part);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) s[r][v] = S::mad(s[r][v], weight, in[r]);
        }
      }
    }
    w += S::BYTES, x += S::XBYTES;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) {
      float* at = sums + r * NB + v * LANES;
      if (END == End::CARRY) {
        store(at, s[r][v]);
      } else if (END == End::SCALE) {
        F before = fresh ? F{} : load(at);
        store(at, before + load(static_cast<const bf16*>(scales) + v * LANES) * s[r][v]);
      } else if (END == End::AFFINE) {
        // The first chunk adds to zeros: with a choice here the compiler fuses one way or the
        // other.
        store(at, load(at) + load(scale + v * LANES) * s[r][v]);
      } else {
        I before = fresh ? I{} : (I)load(at);
        store(at, (F)(before + __builtin_convertvector(s[r][v], I)));
      }
    }
  }
}

// The same with R known at run time, 1 <= rows <= MR.
template <class S, End END, bool ONCE, int R = MR>
static void tile_of(int64_t rows, const uint8_t* w, const uint8_t* x, int64_t ldx, int64_t steps,
                    Fetch fetch, const void* scales, float* sums, bool fresh) {
  if (rows == R) return tile<S, END, ONCE, R>(w, x, ldx, steps, fetch, scales, sums, fresh);
  if constexpr (R > 1)
    tile_of<S, END, ONCE, R - 1>(rows, w, x, ldx, steps, fetch, scales, sums, fresh);
}

// Weights of `steps` in the form of S::Wide, in the order in which they are used.
template <class S>
static void expand(const uint8_t* w, int64_t steps, uint8_t* wide) {
  float* to = reinterpret_cast<float*>(wide);
  for (int64_t i = 0; i < steps; i++, w += S::BYTES)
#pragma GCC unroll 2
    for (int part = 0; part < S::PARTS; part++)
#pragma GCC unroll 8
      for (int v = 0; v < NV; v++, to += LANES) store(to, S::weight(w, v, part));
}
