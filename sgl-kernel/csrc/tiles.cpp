// AMX is there when the processor has it, the operating system saves its registers, and Linux has
// granted this process their use, for which it must be asked once.
#include "tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sgl {
namespace {

bool ask() {
  constexpr unsigned kXsave = 1u << 27, kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kTileState = 3u << 17;  // in XCR0: the configuration and the data
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kXsave)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if ((d & (kBf16 | kTile | kInt8)) != (kBf16 | kTile | kInt8)) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool tiles_allowed() {
  static const bool allowed = ask();
  return allowed;
}
}  // namespace sgl
#else
namespace sgl {
bool tiles_allowed() { return false; }
}  // namespace sgl
#endif
