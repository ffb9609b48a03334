// Parts: matrices of one shape and format, each for its own part of a row: heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace sgl {

using Parts = std::vector<Matrix>;  // one at least

// Scratch memory for the products of m rows: of some parts at a time, so that it stays small.
size_t parts_bytes(const Parts&, int64_t m);
// Vector i of y's rows [m, ldy] = W_i times vector i of x's. Ends with a barrier.
void multiply_parts(Team&, const Parts&, const float* x, int64_t ldx, Columns from, int64_t m,
                    float* y, int64_t ldy, Columns to, void* scratch);

}  // namespace sgl
