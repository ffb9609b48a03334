// The kernels for x86-64 with AVX-512 F, BW, VL and DQ.
#include "prelude.h"
#if defined(__x86_64__)
TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
namespace sgl {
namespace avx512 {
#define LANES 16
#define REGISTERS 32
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace avx512

const Kernels kAvx512 = SGL_KERNELS(avx512);
}  // namespace sgl
END_TARGET
#endif
