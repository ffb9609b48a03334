// The Python module sgl_kernel._C. Numbers and addresses only: whoever calls has checked shapes,
// types and bounds (the Python modules around it do). Scratch memory of single operations is made
// here.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bind.h"
#include "kernels.h"
#include "pages.h"
#include "tape.h"

namespace sgl {
namespace {

Matrix matrix(int64_t format, int64_t n, int64_t k, int64_t group, bool paired, const void* data) {
  return {static_cast<Format>(format), n, k, group, paired, data};
}

struct Free {
  void operator()(void* p) const { free(p); }
};
using Memory = std::unique_ptr<void, Free>;
Memory scratch(size_t bytes) { return Memory(aligned_alloc(64, (bytes / 64 + 1) * 64)); }

const char* isa() { return kernels().name; }

size_t packed_bytes(int64_t format, int64_t n, int64_t k, int64_t group) {
  return kernels().packed_bytes(static_cast<Format>(format), n, k, group);
}

void pack(int threads, int64_t format, int64_t n, int64_t k, int64_t group, bool paired,
          const void* source, int64_t type, int64_t ld, void* to) {
  Matrix w = matrix(format, n, k, group, paired, to);
  auto body = [&](Team& team) { kernels().pack(team, w, source, static_cast<Type>(type), ld, to); };
  parallel(threads, body);
}

// Rows ids[0..count) of W -> y [count, k].
void unpack(int threads, int64_t format, int64_t n, int64_t k, int64_t group, bool paired,
            const void* data, const int32_t* ids, int64_t count, float* y) {
  Matrix w = matrix(format, n, k, group, paired, data);
  auto body = [&](Team& team) {
    Range mine = team.part(count);
    for (int64_t i = mine.begin; i < mine.end; i++) kernels().unpack(w, ids[i], y + i * k);
  };
  parallel(threads, body);
}

// False: no memory.
bool linear(int threads, int64_t format, int64_t n, int64_t k, int64_t group, bool paired,
            const void* data, const float* gain, float eps, const float* x, int64_t ldx, int64_t m,
            const float* bias, bool add, int64_t act, float* y, int64_t ldy) {
  Matrix w = matrix(format, n, k, group, paired, data);
  Memory memory = scratch(kernels().scratch_bytes(w, m));
  if (!memory) return false;
  auto body = [&](Team& team) {
    kernels().prepare(team, w, {gain, eps}, x, ldx, m, memory.get());
    team.barrier();
    kernels().multiply(team, w, memory.get(), m, {bias, add, static_cast<Activation>(act)}, y, ldy);
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

// A Pass, Heads, Rotary or KV comes as the address of its fields, each in eight bytes (floats too).
struct Fields {
  const int64_t* at;
  float real(int i) const {
    double value;
    memcpy(&value, at + i, 8);
    return static_cast<float>(value);
  }
  template <class T>
  T* pointer(int i) const { return reinterpret_cast<T*>(at[i]); }
};

Pass pass_of(const int64_t* p) {
  Fields f{p};
  return {p[0], p[1], p[2], f.pointer<const int32_t>(3), f.pointer<const int32_t>(4),
          f.pointer<const int32_t>(5), f.pointer<const int32_t>(6), f.pointer<const int32_t>(7),
          f.pointer<const int32_t>(8), f.pointer<const int32_t>(9)};
}
Heads heads_of(const int64_t* p) {
  Fields f{p};
  return {p[0], p[1], p[2], f.real(3), p[4], f.real(5)};
}
Rotary rotary_of(const int64_t* p) {
  Fields f{p};
  return {f.pointer<const float>(0), f.pointer<const float>(1), p[2],
          f.pointer<const float>(3), f.pointer<const float>(4), f.real(5)};
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
void tape_embed(Tape* tape, int64_t out, int64_t format, int64_t n, int64_t k, int64_t group,
                const void* data, float scale) {
  tape->embed(out, matrix(format, n, k, group, false, data), scale);
}
void tape_choose(Tape* tape, int64_t out, int64_t x) { tape->choose(out, x); }
void tape_norm(Tape* tape, int64_t out, int64_t x, const float* gain, float eps) {
  tape->norm(out, x, {gain, eps});
}
void tape_linear(Tape* tape, int64_t out, int64_t x, int64_t format, int64_t n, int64_t k,
                 int64_t group, bool paired, const void* data, const float* gain, float eps,
                 const float* bias, bool add, int64_t act) {
  tape->linear(out, x, matrix(format, n, k, group, paired, data), {gain, eps},
               {bias, add, static_cast<Activation>(act)});
}
void tape_append(Tape* tape, int64_t qkv, const int64_t* heads, const int64_t* rotary,
                 const int64_t* kv) {
  tape->append(qkv, heads_of(heads), rotary_of(rotary), kv_of(kv));
}
void tape_attend(Tape* tape, int64_t out, int64_t qkv, const int64_t* heads, const int64_t* kv) {
  tape->attend(out, qkv, heads_of(heads), kv_of(kv));
}
int64_t tape_run(Tape* tape, int threads, const int64_t* pass, const int32_t* chosen,
                 int64_t count, float* result) {
  return tape->run(threads, pass_of(pass), chosen, count, result);
}

PyMethodDef methods[] = {
    method<isa>("isa"),
    method<choose>("choose"),
    method<available>("available"),
    method<packed_bytes>("packed_bytes"),
    method<pack>("pack"),
    method<ask_huge_pages>("ask_huge_pages"),
    method<unpack>("unpack"),
    method<linear>("linear"),
    method<norm>("norm"),
    method<gate>("gate"),
    method<append>("append"),
    method<attend>("attend"),
    method<draw>("draw"),
    method<tape_new>("tape_new"),
    method<tape_free>("tape_free"),
    method<tape_buffer>("tape_buffer"),
    method<tape_embed>("tape_embed"),
    method<tape_choose>("tape_choose"),
    method<tape_norm>("tape_norm"),
    method<tape_linear>("tape_linear"),
    method<tape_append>("tape_append"),
    method<tape_attend>("tape_attend"),
    method<tape_run>("tape_run"),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "Native kernels.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace sgl

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&sgl::definition); }
