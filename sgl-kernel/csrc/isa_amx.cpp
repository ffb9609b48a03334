// The kernels for AMX tiles (Sapphire Rapids and later). The tile instructions are written as assembly.
#include "prelude.h"
#if defined(__x86_64__)
TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")
namespace sgl {
namespace amx {
#define LANES 16
#define REGISTERS 32
#define HAVE_DOT 1  // dpbf16ps
#define HAVE_PAIRS 1
#define HAVE_QUADS 1  // dpbusd
#define HAVE_SIGNED 1
#define HAVE_TILES 1
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace amx

const Kernels kAmx = SGL_KERNELS(amx);
}  // namespace sgl
END_TARGET
#endif
