// The kernels for any Arm of 64 bits.
#include "prelude.h"
#if defined(__aarch64__)
namespace sgl {
namespace neon {
#define LANES 4
#define REGISTERS 32
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace neon

const Kernels kNeon = SGL_KERNELS(neon);
}  // namespace sgl
#endif
