// The kernels, and the data they work on. One table of functions for each instruction set; the best
// that the machine has is chosen once (dispatch.cpp), or by SGL_KERNEL_ISA.
//
// Activations are float32, row-major; weights are packed once at load; keys and values lie in pools
// by slot. Nothing here allocates: outputs and scratch memory are the caller's.
//
// Two promises, which tests hold every kernel to:
//   - a row's result has the same bits whatever else is in the batch, however many threads run and
//     however a prompt was cut into passes;
//   - a float32 result is within 1e-5 of the plain one, relative to the largest value of its row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "team.h"

namespace sgl {

using bf16 = uint16_t;  // the upper half of a float

// Element types of what comes from outside: weights before packing, gains, pools.
enum class Type : int32_t { F32 = 0, BF16 = 1, I8 = 2 };

// ---- matrix products: gemm.inl ---------------------------------------------------------------

// F32, BF16: weights as they are; activations are rounded to bf16 for BF16.
// W8A8: int8 with one scale a row of W, times int8 activations with one scale a token (dynamic).
// W8: int8 with one scale a row, W4: 4 bits with one scale for `group` inputs; activations bf16.
enum class Format : int32_t { F32 = 0, BF16 = 1, W8A8 = 2, W8 = 3, W4 = 4 };

enum class Activation : int32_t { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

// W [n, k], packed. One block of memory; what is where in it is gemm.inl's own business.
// `paired`: W is [2 * m, k], the rows of a gate and then those of what it gates; packed so that the
// product can apply the activation and multiply as it goes. n counts all rows.
struct Matrix {
  Format format;
  int64_t n, k;
  int64_t group;  // W4: inputs that share a scale, 32, 64 or 128; the caller sees to that
  bool paired;
  const void* data;
};

// What is done to x before a product: RMSNorm where `gain` is set, x * rsqrt(mean(x^2) + eps) * gain.
struct Norm {
  const float* gain;
  float eps;
};

// What is done to y = x W^T after it: + bias [n]; for a paired W act(gate) * up, so that y is
// [m, n / 2]; with `add` the result is added to what y holds (the residual stream).
struct Epilogue {
  const float* bias;
  bool add;
  Activation act;  // paired only
};

// ---- one pass: where its rows lie ------------------------------------------------------------

// As srt/attention/base.Layout. Row r has counts[r] new tokens at positions starts[r]..., which lie
// at firsts[r]... among all tokens of the pass; its page table is pages[tables[r]..tables[r + 1]).
struct Pass {
  int64_t rows, tokens, page_size;
  const int32_t *ids, *positions;                    // [tokens]
  const int32_t *starts, *counts, *firsts, *tables;  // [rows], tables [rows + 1]
  const int32_t* pages;
};

struct Heads {
  int64_t q, kv, dim;  // q is a multiple of kv
  float scale;         // of the scores
  int64_t window;      // a query sees itself and window - 1 tokens before it; 0: all
  float soft_cap;      // scores become cap * tanh(score / cap); 0: as they are
};

// Keys and values of one layer: [slots, kv, dim] of F32, BF16 or I8; slot = page * page_size + place.
// I8: one scale for each slot and head, [slots, kv].
struct KV {
  Type type;
  void *keys, *values;
  float *key_scales, *value_scales;
};

// Rotary tables: [length, dim / 2] cosines and sines; `turned` dimensions of each head rotate,
// dimension i with i + turned / 2. With gains, q and k are normed per head (RMSNorm) before.
struct Rotary {
  const float *cos, *sin;
  int64_t turned;
  const float *q_gain, *k_gain;  // [dim], or null
  float eps;
};

// ---- sampling --------------------------------------------------------------------------------

// One row's wishes; as srt/core/sampling. top_k < 1, top_p >= 1, min_p <= 0: off.
// temperature 0: the most likely token, of equals the one with the lowest id.
struct Draw {
  float temperature, top_p, min_p;
  int32_t top_k;
  double uniform;        // in [0, 1)
  const uint32_t* mask;  // bit i of the words: token i is allowed; null: all are
};

struct Kernels {
  const char* name;

  // gemm.inl. Packing reads rows `ld` elements apart; dst has packed_bytes, aligned to 64.
  size_t (*packed_bytes)(Format, int64_t n, int64_t k, int64_t group);
  void (*pack)(Team&, const Matrix&, const void* src, Type, int64_t ld, void* dst);
  // Row `index` of W as float32 [k]: the embedding of a token, where the table is the output head too.
  void (*unpack)(const Matrix&, int64_t index, float* y);
  // A product has two halves, with a barrier between that the caller sees to: x [m, k] is normed and
  // brought into the form W wants, in scratch of scratch_bytes(w, m); then y = x W^T.
  size_t (*scratch_bytes)(const Matrix&, int64_t m);
  void (*prepare)(Team&, const Matrix&, const Norm&, const float* x, int64_t ldx, int64_t m,
                  void* scratch);
  void (*multiply)(Team&, const Matrix&, const void* scratch, int64_t m, const Epilogue&, float* y,
                   int64_t ldy);

  // attention.inl. qkv [tokens, ld] holds the q heads, the k heads, the v heads of each token.
  // append rotates q in place, rotates k and writes k and v to the pool.
  void (*append)(Team&, const Pass&, const Heads&, const Rotary&, float* qkv, int64_t ld, const KV&);
  // attend: causal attention of all rows, out [tokens, ldo] of q * dim. Prefixes that rows have in
  // common (equal page numbers) are read once for all of them. The caller sees to a barrier between.
  size_t (*attend_bytes)(const Pass&, const Heads&, int threads);
  void (*attend)(Team&, const Pass&, const Heads&, const float* qkv, int64_t ld, const KV&, float* out,
                 int64_t ldo, void* scratch);

  // rows.inl
  void (*norm)(Team&, const Norm&, const float* x, int64_t ldx, int64_t m, int64_t n, float* y,
               int64_t ldy);
  void (*gate)(Team&, Activation, const float* x, int64_t ldx, int64_t m, int64_t n, float* y,
               int64_t ldy);  // x [m, 2n]: act(x[:, :n]) * x[:, n:]
  // One token a row of logits [m, ld] (first n columns), by the inverse of the cumulated
  // distribution in vocabulary order. -1: nothing may be drawn. -2: a logit is NaN or +inf.
  size_t (*draw_bytes)(int64_t n, int threads);
  void (*draw)(Team&, const float* logits, int64_t ld, int64_t m, int64_t n, const Draw*,
               int32_t* tokens, void* scratch);
};

extern const Kernels kPlain;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512, kAvx512Bf16, kAmx;
extern const Kernels kAmxEmulated;  // the tile code with its instructions done in C++, for tests
#endif

// The best kernels of this machine, or those chosen by name. Names: amx, avx512_bf16, avx512, avx2,
// plain.
const Kernels& kernels();
bool choose(const char* name);        // false: this machine does not have them, or there are none
const char* available(int index);     // names, best first; null behind the last

}  // namespace sgl
