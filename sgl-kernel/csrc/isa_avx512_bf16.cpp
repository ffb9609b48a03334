// The kernels for AVX-512 with products of bf16 pairs and of int8 quadruples (Zen 4, Cooper Lake and later).
#include "prelude.h"
#if defined(__x86_64__)
TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")
namespace sgl {
namespace avx512_bf16 {
#define LANES 16
#define REGISTERS 32
#define HAVE_DOT 1  // dpbf16ps
#define HAVE_PAIRS 1
#define HAVE_QUADS 1  // dpbusd
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace avx512_bf16

const Kernels kAvx512Bf16 = SGL_KERNELS(avx512_bf16);
}  // namespace sgl
END_TARGET
#endif
