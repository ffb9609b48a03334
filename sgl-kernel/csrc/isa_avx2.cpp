// The kernels for x86-64 with AVX2 and FMA.
#include "prelude.h"
#if defined(__x86_64__)
TARGET("avx2,fma,f16c")
namespace sgl {
namespace avx2 {
#define LANES 8
#define REGISTERS 16
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace avx2

const Kernels kAvx2 = SGL_KERNELS(avx2);
}  // namespace sgl
END_TARGET
#endif
