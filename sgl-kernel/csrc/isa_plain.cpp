// The kernels for any machine: what the compiler makes of plain C++.
#include "prelude.h"

namespace sgl {
namespace plain {
#define LANES 8
#define REGISTERS 16
#include "vec.h"
#include "gemm.inl"
#include "experts.inl"
#include "attention.inl"
#include "rows.inl"
}  // namespace plain

const Kernels kPlain = SGL_KERNELS(plain);
}  // namespace sgl
