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
// F8: e4m3 without infinities (Micikevicius et al. 2022), of pools.
enum class Type : int32_t { F32 = 0, BF16 = 1, I8 = 2, F8 = 3 };

// ---- matrix products: gemm.inl ---------------------------------------------------------------

// F32, BF16: weights as they are; activations are rounded to bf16 for BF16.
// W8A8: int8 with one scale a row of W, times int8 activations with one scale a token (dynamic).
// W8: int8 with one scale a row, W4: 4 bits with one scale for `group` inputs; activations bf16.
// W4Z, W4M, W8Z, W8M: 4 bits (-8..7) or int8 as somebody else has quantised them; for `group` inputs
// w = scale * q + low. Both are floats (M); or the scale is a float16 and the low an int8 times it
// (Z).
// clang-format off
enum class Format : int32_t {
  F32 = 0, BF16 = 1, W8A8 = 2, W8 = 3, W4 = 4, W4Z = 5, W4M = 6, W8Z = 7, W8M = 8
};
// clang-format on

// CLAMPED_SWIGLU, GPT-OSS's: gate * sigmoid(1.702 gate) * (up + 1), gate <= 7, |up| <= 7.
enum class Activation : int32_t { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3, CLAMPED_SWIGLU = 4 };

// W [n, k], packed. One block of memory; what is where in it is gemm.inl's own business.
// `paired`: W is [2 * m, k], the rows of a gate and then those of what it gates; packed so that the
// product can apply the activation and multiply as it goes. n counts all rows.
struct Matrix {
  Format format;
  int64_t n, k;
  int64_t group;  // inputs that share a scale, 32, 64 or 128; the caller sees to that
  bool paired;
  const void* data;
};

// What is done to x before a product: RMSNorm where `gain` is set, x * rsqrt(mean(x^2) + eps) * gain.
struct Norm {
  const float* gain;
  float eps;
};

// A norm that stands by itself: y = norm(x), or with `add` y += norm(x). `centred`: LayerNorm (Ba
// et al. 2016), else RMSNorm. bias [n], or null.
struct FullNorm {
  const float* gain;
  float eps;
  const float* bias = nullptr;
  bool centred = false;
  bool add = false;
};

// What is done to y = x W^T after it: + bias [n]; for a paired W act(gate) * up, so that y is
// [m, n / 2]; with `add` the result is added to what y holds (the residual stream).
// `low`: adapters, whose share of y is added before the bias.
// `next`: the only product that reads y, which takes it as it is (Kernels::takes): y is written
// into its scratch memory, `rows`, as prepare would have written it, and nowhere else.
struct Low;
struct Epilogue {
  const float* bias;
  bool add;
  Activation act;  // paired only
  const Low* low = nullptr;
  const Matrix* next = nullptr;
  void* rows = nullptr;
};

// ---- low-rank adapters: lora.inl -------------------------------------------------------------

// y[first + c] += sum_j b[j][c] * (sum_i a[j][i] x[i]); a [rank, k], b [rank, count], both of one
// type, F32 or BF16.
struct LowRank {
  const void *a, *b;
  int64_t rank, first, count;
};

// What an adapter does to product p of a model: pairs[starts[p]], ..., pairs[starts[p + 1] - 1].
struct Adapter {
  const LowRank* pairs;
  const int64_t* starts;
};

// The tokens of a pass that adapters apply to: tokens[i] by adapters[groups[i]]. places[t] is the i
// of token t, -1 where it has none.
struct Adapted {
  int64_t count, adapters_count;
  int64_t stride;  // of the low numbers of a token: the most ranks of a product, in whole eights
  Type type;       // of all pairs
  const Adapter* adapters;
  const int32_t *tokens, *groups;  // [count]
  const int32_t* places;           // [tokens of the product]

  bool touches(int64_t product) const {
    for (int64_t g = 0; g < adapters_count; g++)
      if (adapters[g].starts[product] != adapters[g].starts[product + 1]) return true;
    return false;
  }
};

// Of one product: what `shrink` has made.
struct Low {
  const Adapted* use;
  int64_t product;
  const float* values;  // [count, stride]
};

// ---- mixture of experts: experts.inl ----------------------------------------------------------

// Which experts a token goes to, by their logits: srt/layers/routing tells the rule, reference.py
// computes it. Of equals the lowest number goes first.
struct Routing {
  int64_t experts, top_k;
  bool sigmoid, renormalise;
  float scale;
  int64_t groups, kept, group_best;
  const float* bias;  // [experts], of the choice alone; or null
};

// y = sum of weight * down(act(gate) * up) over the experts of a token, in the order in which they
// were chosen. `shared`: one more expert, the last, that all tokens go through at weight 1, or at
// the sigmoid of the router's last row (`shared_gate`).
struct Experts {
  Routing routing;
  Activation act;
  bool shared, shared_gate;
  bool alike;                    // all but the shared expert have matrices of one shape and format
  Matrix router;                 // [experts + shared_gate, k]
  const float* router_bias;      // [experts + shared_gate], or null
  const Matrix *gate_up, *down;  // [experts + shared], gate_up paired
  const float *const *gate_up_bias, *const *down_bias;  // [experts + shared] of vectors or nulls
};

// ---- one pass: where its rows lie ------------------------------------------------------------

// As srt/attention/attention_protocol.Layout. Row r has counts[r] new tokens, which see starts[r]
// before them and lie at firsts[r]... among all tokens of the pass; its page table is
// pages[tables[r]..tables[r + 1]). q and k are rotated by ``positions``, whatever the rows see: one
// a token, or three one behind the other (time, height and width: Qwen2-VL, Wang et al. 2024).
struct Pass {
  int64_t rows, tokens, page_size;
  const int32_t *ids, *positions;                    // [tokens], positions [axes, tokens]
  const int32_t *starts, *counts, *firsts, *tables;  // [rows], tables [rows + 1]
  const int32_t* pages;
  // Tokens whose embeddings are not the table's (those of images): given_at [given], ascending, and
  // what stands in their place, [given, width].
  const int32_t* given_at = nullptr;
  const float* embeddings = nullptr;
  int64_t given = 0;
  int64_t axes = 1;
};

struct Heads {
  int64_t q, kv, dim;  // q is a multiple of kv
  float scale;         // of the scores
  int64_t window;      // a query sees itself and window - 1 tokens before it; 0: all
  float soft_cap;      // scores become cap * tanh(score / cap); 0: as they are
  int64_t value;       // dimensions of a value, even
  const float* sinks;  // [q] scores that join the sum of weights and have no value; or null
};

// Keys and values of one layer: [slots, kv, dim] and [slots, kv, value] of any type; slot = page *
// page_size + place. I8: one scale for each slot and head, [slots, kv].
// Shared, where `values` is `keys` (and so are their scales): a value is the beginning of its key.
struct KV {
  Type type;
  void *keys, *values;
  float *key_scales, *value_scales;
  bool shared() const { return keys == values; }
};

// Rotary tables: [length, dim / 2] cosines and sines; `turned` dimensions of each head rotate,
// dimension i with i + turned / 2. With gains, q and k are normed per head (RMSNorm) before.
// `sections`: of the turned / 2 pairs, how many turn by each of a token's three positions, where
// the pass has three.
struct Rotary {
  const float *cos, *sin;
  int64_t turned;
  const float *q_gain, *k_gain;  // [dim], or null
  float eps;
  int64_t sections[3];
};

// Vectors of a buffer's row: vector i begins at column first + i * apart.
struct Columns {
  int64_t first, apart;
};

// ---- sampling --------------------------------------------------------------------------------

// Sampling parameters of one row; as sglang/ir/sampling. top_k < 1, top_p >= 1, min_p <= 0: off.
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
  // The same from integers with their scales; not for F32, BF16 and W4. q: [n, k], rows ld apart.
  // W8, W8A8: scales [n], no lows. The others: [n, ceil(k / group)] both, lows of Z in scales, no
  // lows at all for zeros.
  void (*pack_integers)(Team&, const Matrix&, const int8_t* q, int64_t ld, const float* scales,
                        const float* lows, void* dst);
  // Row `index` of W as float32 [k]: the embedding of a token, where the table is the output head too.
  void (*unpack)(const Matrix&, int64_t index, float* y);
  // A product has two halves, with a barrier between that the caller sees to: x [m, k] is normed and
  // brought into the form W wants, in scratch of scratch_bytes(w, m); then y = x W^T.
  size_t (*scratch_bytes)(const Matrix&, int64_t m);
  void (*prepare)(Team&, const Matrix&, const Norm&, const float* x, int64_t ldx, int64_t m,
                  void* scratch);
  void (*multiply)(Team&, const Matrix&, const void* scratch, int64_t m, const Epilogue&, float* y,
                   int64_t ldy);
  // Whether a product before this one may write its scratch memory, instead of prepare.
  bool (*takes)(const Matrix&);

  // experts.inl. y [m, ldy] = experts(norm(x)), or y += them. Works through x in slabs of rows, so
  // that scratch stays small however many they are. The caller sees to a barrier behind it.
  size_t (*experts_bytes)(const Experts&, int64_t m);
  void (*experts)(Team&, const Experts&, const Norm&, const float* x, int64_t ldx, int64_t m,
                  bool add, float* y, int64_t ldy, void* scratch);

  // lora.inl. x as for prepare; low has low_bytes(adapted, w.k). May share its barrier with prepare.
  size_t (*low_bytes)(const Adapted&, int64_t k);
  void (*shrink)(Team&, const Adapted&, int64_t product, const Norm&, const float* x, int64_t ldx,
                 int64_t k, float* low);

  // attention.inl. qkv [tokens, ld] holds the q heads, the k heads, the v heads of each token, no v
  // where they are shared.
  // turn copies `count` vectors of each token, of rotary.turned dimensions, and rotates them.
  void (*turn)(Team&, const Pass&, const Rotary&, int64_t count, const float* x, int64_t ldx,
               Columns from, float* y, int64_t ldy, Columns to);
  // append rotates q in place, rotates k and writes k and v to the pool.
  void (*append)(Team&, const Pass&, const Heads&, const Rotary&, float* qkv, int64_t ld,
                 const KV&);
  // attend: causal attention of all rows, out [tokens, ldo] of q * value. Prefixes that rows have in
  // common (equal page numbers) are read once for all of them. The caller sees to a barrier between.
  size_t (*attend_bytes)(const Pass&, const Heads&, int threads);
  void (*attend)(Team&, const Pass&, const Heads&, const float* qkv, int64_t ld, const KV&,
                 float* out, int64_t ldo, void* scratch);

  // rows.inl
  void (*norm)(Team&, const FullNorm&, const float* x, int64_t ldx, int64_t m, int64_t n, float* y,
               int64_t ldy);
  void (*gate)(Team&, Activation, const float* x, int64_t ldx, int64_t m, int64_t n, float* y,
               int64_t ldy);  // x [m, 2n]: act(x[:, :n]) * x[:, n:]
  void (*activate)(Team&, Activation, float* x, int64_t ldx, int64_t m, int64_t n);  // in place
  // Of each row of logits [m, ld], n columns: its largest one, and the logarithm of the sum of
  // exp(logit - largest), NaN where a logit is NaN or +inf or all are -inf. A log-probability is
  // logit - largest - sum.
  void (*log_sums)(Team&, const float* logits, int64_t ld, int64_t m, int64_t n, float* largest,
                   double* sums);
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
#elif defined(__aarch64__)
extern const Kernels kNeon, kNeonDot, kNeonBf16;
#endif

// The best kernels of this machine, or those chosen by name. Names: amx, avx512_bf16, avx512, avx2,
// neon_bf16, neon_dot, neon, plain.
const Kernels& kernels();
bool choose(const char* name);     // false: this machine does not have them, or there are none
const char* available(int index);  // names, best first; null behind the last

}  // namespace sgl
