// What kernels ask of the operating system's memory.
#pragma once

#include <cstddef>

namespace sgl {

// Hints that memory about to be written should lie in huge pages: weights are read from end to end,
// and each 4 KiB page costs a look-up that a 2 MiB page saves. Nothing happens where it cannot.
void ask_huge_pages(void* start, size_t bytes);

}  // namespace sgl
