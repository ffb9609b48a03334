// The kernels for AMX with the tile instructions done in C++: the packing, blocking and bookkeeping
// of isa_amx.cpp, for tests on machines without AMX. Needs what isa_avx512_bf16.cpp needs.
#include "prelude.h"
#if defined(__x86_64__)
TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")
namespace sgl {
namespace amx_emulated {
#define LANES 16
#define REGISTERS 32
#define HAVE_DOT 1  // dpbf16ps
#define HAVE_PAIRS 1
#define HAVE_QUADS 1  // dpbusd
#define HAVE_SIGNED 1
#define HAVE_TILES 1
#define TILES_EMULATED 1
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace amx_emulated

const Kernels kAmxEmulated = SGL_KERNELS(amx_emulated);
}  // namespace sgl
END_TARGET
#endif
