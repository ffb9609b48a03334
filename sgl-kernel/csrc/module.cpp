// The Python module sgl_kernel._C. Numbers and addresses only: whoever calls has checked shapes,
// types and bounds (the Python modules around it do). Scratch memory of single operations is made
// here.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bind.h"
#include "experts.h"
#include "kernels.h"
#include "meeting.h"
#include "pages.h"
#include "parts.h"
#include "tape.h"

namespace sgl {
namespace {

// What has many parts comes as the address of its fields, each in eight bytes (floats too).
struct Fields {
  const int64_t* at;
  float real(int i) const {
    double value;
    memcpy(&value, at + i, 8);
    return static_cast<float>(value);
  }
  template <class T>
  T* pointer(int i) const {
    return reinterpret_cast<T*>(at[i]);
  }
};

Matrix matrix_of(const int64_t* p) {
  return {static_cast<Format>(p[0]), p[1], p[2], p[3], p[4] != 0, Fields{p}.pointer<const void>(5)};
}

// The norm before a product; the bias, sum and activation behind it.
struct Around {
  Norm norm;
  Epilogue epilogue;
  explicit Around(const int64_t* p)
      : norm{Fields{p}.pointer<const float>(0), Fields{p}.real(1)},
        epilogue{Fields{p}.pointer<const float>(2), p[3] != 0, static_cast<Activation>(p[4])} {}
};

struct Free {
  void operator()(void* p) const { free(p); }
};
using Memory = std::unique_ptr<void, Free>;
Memory scratch(size_t bytes) { return Memory(aligned_alloc(64, (bytes / 64 + 1) * 64)); }

const char* isa() { return kernels().name; }

size_t packed_bytes(int64_t format, int64_t n, int64_t k, int64_t group) {
  return kernels().packed_bytes(static_cast<Format>(format), n, k, group);
}

void pack(int threads, const int64_t* matrix, const void* source, int64_t type, int64_t ld) {
  Matrix w = matrix_of(matrix);
  void* to = const_cast<void*>(w.data);
  auto body = [&](Team& team) { kernels().pack(team, w, source, static_cast<Type>(type), ld, to); };
  parallel(threads, body);
}

void pack_integers(int threads, const int64_t* matrix, const int8_t* q, int64_t ld,
                   const float* scales, const float* lows) {
  Matrix w = matrix_of(matrix);
  void* to = const_cast<void*>(w.data);
  auto body = [&](Team& team) { kernels().pack_integers(team, w, q, ld, scales, lows, to); };
  parallel(threads, body);
}

// Rows ids[0..count) of W -> y [count, k].
void unpack(int threads, const int64_t* matrix, const int32_t* ids, int64_t count, float* y) {
  Matrix w = matrix_of(matrix);
  auto body = [&](Team& team) {
    Range mine = team.part(count);
    for (int64_t i = mine.begin; i < mine.end; i++) kernels().unpack(w, ids[i], y + i * w.k);
  };
  parallel(threads, body);
}

// Tokens that adapters apply to come as the address of eight bytes a field.
struct Use {
  Adapted value;
  const Adapted* at;  // null: none
  explicit Use(const int64_t* p) : value{}, at(p ? &value : nullptr) {
    if (p)
      // clang-format off
      value = {p[0], p[1], p[2], static_cast<Type>(p[3]), reinterpret_cast<const Adapter*>(p[4]),
               reinterpret_cast<const int32_t*>(p[5]), reinterpret_cast<const int32_t*>(p[6]),
               reinterpret_cast<const int32_t*>(p[7])};
    // clang-format on
  }
};

// adapted: null where no row has an adapter. False: no memory.
bool linear(int threads, const int64_t* matrix, const int64_t* around, const float* x, int64_t ldx,
            int64_t m, float* y, int64_t ldy, const int64_t* adapted, int64_t product) {
  Matrix w = matrix_of(matrix);
  Around about(around);
  Use use(adapted);
  bool touched = use.at && use.at->touches(product);
  Memory memory = scratch(kernels().scratch_bytes(w, m));
  Memory room = scratch(touched ? kernels().low_bytes(*use.at, w.k) : 0);
  if (!memory || !room) return false;
  float* values = static_cast<float*>(room.get());
  Low low{use.at, product, values};
  about.epilogue.low = touched ? &low : nullptr;
  auto body = [&](Team& team) {
    if (touched) kernels().shrink(team, *use.at, product, about.norm, x, ldx, w.k, values);
    kernels().prepare(team, w, about.norm, x, ldx, m, memory.get());
    team.barrier();
    kernels().multiply(team, w, memory.get(), m, about.epilogue, y, ldy);
  };
  parallel(threads, body);
  return true;
}

void norm(int threads, const float* gain, float eps, const float* x, int64_t ldx, int64_t m,
          int64_t n, float* y, int64_t ldy) {
  auto body = [&](Team& team) { kernels().norm(team, {gain, eps}, x, ldx, m, n, y, ldy); };
  parallel(threads, body);
}

void gate(int threads, int64_t act, const float* x, int64_t ldx, int64_t m, int64_t n, float* y,
          int64_t ldy) {
  auto body = [&](Team& team) {
    kernels().gate(team, static_cast<Activation>(act), x, ldx, m, n, y, ldy);
  };
  parallel(threads, body);
}

Pass pass_of(const int64_t* p) {
  Fields f{p};
  // clang-format off
  return {p[0], p[1], p[2], f.pointer<const int32_t>(3), f.pointer<const int32_t>(4),
          f.pointer<const int32_t>(5), f.pointer<const int32_t>(6), f.pointer<const int32_t>(7),
          f.pointer<const int32_t>(8), f.pointer<const int32_t>(9), f.pointer<const int32_t>(10),
          f.pointer<const float>(11), p[12], p[13]};
  // clang-format on
}
Heads heads_of(const int64_t* p) {
  Fields f{p};
  return {p[0], p[1], p[2], f.real(3), p[4], f.real(5), p[6], f.pointer<const float>(7)};
}
Rotary rotary_of(const int64_t* p) {
  Fields f{p};
  return {f.pointer<const float>(0), f.pointer<const float>(1), p[2],
          f.pointer<const float>(3), f.pointer<const float>(4), f.real(5),
          {p[6], p[7], p[8]}};
}
KV kv_of(const int64_t* p) {
  Fields f{p};
  return {static_cast<Type>(p[0]), f.pointer<void>(1), f.pointer<void>(2), f.pointer<float>(3),
          f.pointer<float>(4)};
}

void append(int threads, const int64_t* pass, const int64_t* heads, const int64_t* rotary,
            float* qkv, int64_t ld, const int64_t* kv) {
  Pass p = pass_of(pass);
  Heads h = heads_of(heads);
  Rotary r = rotary_of(rotary);
  KV pool = kv_of(kv);
  auto body = [&](Team& team) { kernels().append(team, p, h, r, qkv, ld, pool); };
  parallel(threads, body);
}

bool attend(int threads, const int64_t* pass, const int64_t* heads, const float* qkv, int64_t ld,
            const int64_t* kv, float* out, int64_t ldo) {
  Pass p = pass_of(pass);
  Heads h = heads_of(heads);
  KV pool = kv_of(kv);
  Memory memory = scratch(kernels().attend_bytes(p, h, team_size(threads)));
  if (!memory) return false;
  auto body = [&](Team& team) {
    kernels().attend(team, p, h, qkv, ld, pool, out, ldo, memory.get());
  };
  parallel(threads, body);
  return true;
}

Parts parts_of(const int64_t* matrices, int64_t count) {
  Parts found;
  for (int64_t i = 0; i < count; i++) found.push_back(matrix_of(matrices + 6 * i));
  return found;
}

// y[t][i] = W_i x[t][i]; parts of x and y lie px and py apart. False: no memory.
bool linear_each(int threads, const int64_t* matrices, int64_t count, const float* x, int64_t ldx,
                 int64_t px, int64_t m, float* y, int64_t ldy, int64_t py) {
  const Parts parts = parts_of(matrices, count);
  Memory memory = scratch(parts_bytes(parts, m));
  if (!memory) return false;
  auto body = [&](Team& team) {
    multiply_parts(team, parts, x, ldx, {0, px}, m, y, ldy, {0, py}, memory.get());
  };
  parallel(threads, body);
  return true;
}

// `rest` as sgl_kernel/experts.py lists it, `matrices` as gate_up, down and the addresses of their
// biases for each expert.
int64_t experts_new(const int64_t* rest, const int64_t* matrices) {
  Fields f{rest};
  Experts x{};
  // clang-format off
  x.routing = {rest[0], rest[1], rest[2] != 0, rest[3] != 0, f.real(4), rest[5], rest[6], rest[7],
               f.pointer<const float>(8)};
  // clang-format on
  x.act = static_cast<Activation>(rest[9]);
  x.shared = rest[10] != 0, x.shared_gate = rest[11] != 0;
  x.router_bias = f.pointer<const float>(12);
  x.router = matrix_of(rest + 13);
  std::vector<Matrix> up, down;
  std::vector<const float*> up_bias, down_bias;
  for (int64_t e = 0; e < x.routing.experts + x.shared; e++, matrices += 14) {
    up.push_back(matrix_of(matrices)), down.push_back(matrix_of(matrices + 6));
    up_bias.push_back(reinterpret_cast<const float*>(matrices[12]));
    down_bias.push_back(reinterpret_cast<const float*>(matrices[13]));
  }
  return reinterpret_cast<int64_t>(new Mixture(x, up, down, up_bias, down_bias));
}
void experts_free(Mixture* mixture) { delete mixture; }
bool experts(const Mixture* mixture, int threads, const float* gain, float eps, const float* x,
             int64_t ldx, int64_t m, bool add, float* y, int64_t ldy) {
  const Experts& e = mixture->experts;
  Memory memory = scratch(kernels().experts_bytes(e, m));
  if (!memory) return false;
  auto body = [&](Team& team) {
    kernels().experts(team, e, {gain, eps}, x, ldx, m, add, y, ldy, memory.get());
  };
  parallel(threads, body);
  return true;
}

void log_sums(int threads, const float* logits, int64_t ld, int64_t m, int64_t n, float* largest,
              double* sums) {
  auto body = [&](Team& team) { kernels().log_sums(team, logits, ld, m, n, largest, sums); };
  parallel(threads, body);
}

// draws: [m] of Draw, as numpy lays out an aligned record of the same fields.
bool draw(int threads, const float* logits, int64_t ld, int64_t m, int64_t n, const Draw* draws,
          int32_t* tokens) {
  Memory memory = scratch(kernels().draw_bytes(n, team_size(threads)));
  if (!memory) return false;
  auto body = [&](Team& team) {
    kernels().draw(team, logits, ld, m, n, draws, tokens, memory.get());
  };
  parallel(threads, body);
  return true;
}

// ---- the tape --------------------------------------------------------------------------------

int64_t tape_new() { return reinterpret_cast<int64_t>(new Tape); }
void tape_free(Tape* tape) { delete tape; }
int64_t tape_buffer(Tape* tape, int64_t width) { return tape->buffer(width); }
void tape_embed(Tape* tape, int64_t out, const int64_t* table, float scale) {
  tape->embed(out, matrix_of(table), scale);
}
void tape_choose(Tape* tape, int64_t out, int64_t x) { tape->choose(out, x); }
void tape_reorder(Tape* tape, int64_t out, int64_t x, const int32_t* order) {
  tape->reorder(out, x, order);
}
void tape_norm(Tape* tape, int64_t out, int64_t to, int64_t x, int64_t first, int64_t count,
               const float* gain, float eps, const float* bias, bool centred, bool add) {
  tape->norm(out, to, x, {gain, eps, bias, centred, add}, first, count);
}
void tape_activate(Tape* tape, int64_t x, int64_t act) {
  tape->activate(x, static_cast<Activation>(act));
}
void tape_place(Tape* tape, int64_t x, const float* table) { tape->place(x, table); }
void tape_linear(Tape* tape, int64_t out, int64_t x, const int64_t* matrix, const int64_t* around) {
  Around about(around);
  tape->linear(out, x, matrix_of(matrix), about.norm, about.epilogue);
}
void tape_experts(Tape* tape, int64_t out, int64_t x, const Mixture* mixture, const float* gain,
                  float eps) {
  tape->experts(out, x, mixture->experts, {gain, eps});
}
// to, from: the two fields of Columns.
void tape_turn(Tape* tape, int64_t out, int64_t to_first, int64_t to_apart, int64_t x,
               int64_t from_first, int64_t from_apart, int64_t count, const int64_t* rotary) {
  tape->turn(out, {to_first, to_apart}, x, {from_first, from_apart}, count, rotary_of(rotary));
}
void tape_each(Tape* tape, int64_t out, int64_t to_first, int64_t to_apart, int64_t x,
               int64_t from_first, int64_t from_apart, int64_t count, const int64_t* matrices) {
  tape->multiply_each(out, {to_first, to_apart}, x, {from_first, from_apart},
                      parts_of(matrices, count));
}
void tape_append(Tape* tape, int64_t qkv, const int64_t* heads, const int64_t* rotary,
                 const int64_t* kv) {
  tape->append(qkv, heads_of(heads), rotary_of(rotary), kv_of(kv));
}
void tape_attend(Tape* tape, int64_t out, int64_t qkv, const int64_t* heads, const int64_t* kv) {
  tape->attend(out, qkv, heads_of(heads), kv_of(kv));
}
int64_t tape_run(Tape* tape, int threads, const int64_t* pass, const int32_t* chosen, int64_t count,
                 float* result) {
  return tape->run(threads, pass_of(pass), chosen, count, result);
}
void tape_adapt(Tape* tape, int64_t product) { tape->adapt(product); }
int64_t tape_run_adapted(Tape* tape, int threads, const int64_t* pass, const int32_t* chosen,
                         int64_t count, float* result, const int64_t* adapted,
                         const int64_t* adapted_chosen) {
  Use all(adapted), some(adapted_chosen);
  return tape->run(threads, pass_of(pass), chosen, count, result, all.at, some.at);
}

void tape_input(Tape* tape, int64_t out) { tape->input(out); }
void tape_share(Tape* tape, int64_t first) { tape->share(first); }
void tape_overwrite(Tape* tape) { tape->overwrite(); }
void tape_reduce(Tape* tape, int64_t out, int64_t x, Meeting* meeting, bool add) {
  tape->reduce(out, x, meeting, add);
}

// ---- ranks of one machine --------------------------------------------------------------------

size_t meeting_bytes(int64_t size) { return Meeting::bytes(static_cast<int>(size)); }
int64_t meeting_new(void* memory, int64_t rank, int64_t size) {
  return reinterpret_cast<int64_t>(
      new Meeting(memory, static_cast<int>(rank), static_cast<int>(size)));
}
void meeting_free(Meeting* meeting) { delete meeting; }
void meeting_sum(Meeting* meeting, int threads, const float* x, float* out, int64_t count) {
  auto body = [&](Team& team) { meeting->sum(team, x, out, count, false); };
  parallel(threads, body);
}
void meeting_gather(Meeting* meeting, int threads, const float* x, float* out, int64_t rows,
                    int64_t width) {
  auto body = [&](Team& team) { meeting->gather(team, x, out, rows, width); };
  parallel(threads, body);
}

PyMethodDef methods[] = {
    method<isa>("isa"),
    method<choose>("choose"),
    method<available>("available"),
    method<packed_bytes>("packed_bytes"),
    method<pack>("pack"),
    method<pack_integers>("pack_integers"),
    method<ask_huge_pages>("ask_huge_pages"),
    method<unpack>("unpack"),
    method<linear>("linear"),
    method<linear_each>("linear_each"),
    method<norm>("norm"),
    method<gate>("gate"),
    method<append>("append"),
    method<attend>("attend"),
    method<experts_new>("experts_new"),
    method<experts_free>("experts_free"),
    method<experts>("experts"),
    method<log_sums>("log_sums"),
    method<draw>("draw"),
    method<tape_new>("tape_new"),
    method<tape_free>("tape_free"),
    method<tape_buffer>("tape_buffer"),
    method<tape_embed>("tape_embed"),
    method<tape_choose>("tape_choose"),
    method<tape_reorder>("tape_reorder"),
    method<tape_norm>("tape_norm"),
    method<tape_activate>("tape_activate"),
    method<tape_place>("tape_place"),
    method<tape_linear>("tape_linear"),
    method<tape_experts>("tape_experts"),
    method<tape_turn>("tape_turn"),
    method<tape_each>("tape_each"),
    method<tape_append>("tape_append"),
    method<tape_attend>("tape_attend"),
    method<tape_run>("tape_run"),
    method<tape_adapt>("tape_adapt"),
    method<tape_run_adapted>("tape_run_adapted"),
    method<tape_input>("tape_input"),
    method<tape_share>("tape_share"),
    method<tape_overwrite>("tape_overwrite"),
    method<tape_reduce>("tape_reduce"),
    method<meeting_bytes>("meeting_bytes"),
    method<meeting_new>("meeting_new"),
    method<meeting_free>("meeting_free"),
    method<meeting_sum>("meeting_sum"),
    method<meeting_gather>("meeting_gather"),
    {nullptr, nullptr, 0, nullptr},
};

// clang-format off
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "Native kernels.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};
// clang-format on

}  // namespace
}  // namespace sgl

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&sgl::definition); }
