// The kernels for Arm with products of bf16 pairs too (Neoverse V1 and N2, Apple M2 and later).
#include "prelude.h"
#if defined(__aarch64__)
TARGET("arch=armv8.2-a+dotprod+bf16")
namespace sgl {
namespace neon_bf16 {
#define LANES 4
#define REGISTERS 32
#define HAVE_PAIRS 1  // bfdot
#define HAVE_QUADS 1  // sdot
#define HAVE_SIGNED 1
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace neon_bf16

const Kernels kNeonBf16 = SGL_KERNELS(neon_bf16);
}  // namespace sgl
END_TARGET
#endif
