// The kernels for Arm with products of int8 quadruples (Neoverse N1, Apple M1 and later).
#include "prelude.h"
#if defined(__aarch64__)
TARGET("arch=armv8.2-a+dotprod")
namespace sgl {
namespace neon_dot {
#define LANES 4
#define REGISTERS 32
#define HAVE_QUADS 1  // sdot
#define HAVE_SIGNED 1
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace neon_dot

const Kernels kNeonDot = SGL_KERNELS(neon_dot);
}  // namespace sgl
END_TARGET
#endif
