#include "pages.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace sgl {

void ask_huge_pages(void* start, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kHuge = size_t{2} << 20;
  if (bytes < kHuge) return;
  uintptr_t begin = (reinterpret_cast<uintptr_t>(start) + kPage - 1) / kPage * kPage;
  uintptr_t end = (reinterpret_cast<uintptr_t>(start) + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)start, (void)bytes;
#endif
}

}  // namespace sgl
