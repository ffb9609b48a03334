// Which kernels run: the best that processor and operating system allow, or those asked for by name.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "tiles.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace sgl {
namespace {

struct Choice {
  const Kernels* table;
  bool (*runs)();
  bool automatic;
};

#if defined(__x86_64__)
bool avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool avx512() {
  return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool avx512_bf16() {
  return avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
bool amx() { return avx512_bf16() && tiles_allowed(); }
#elif defined(__aarch64__)
#if defined(__linux__)
bool neon_dot() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
bool neon_bf16() { return neon_dot() && getauxval(AT_HWCAP2) & HWCAP2_BF16; }
#elif defined(__APPLE__)
bool feature(const char* name) {
  int has = 0;
  size_t size = sizeof has;
  return !sysctlbyname(name, &has, &size, nullptr, 0) && has;
}
bool neon_dot() { return feature("hw.optional.arm.FEAT_DotProd"); }
bool neon_bf16() { return neon_dot() && feature("hw.optional.arm.FEAT_BF16"); }
#else
bool neon_dot() { return false; }
bool neon_bf16() { return false; }
#endif
#endif
bool always() { return true; }

// Best first.
const Choice kChoices[] = {
#if defined(__x86_64__)
    {&kAmx, amx, true},
    {&kAvx512Bf16, avx512_bf16, true},
    {&kAvx512, avx512, true},
    {&kAvx2, avx2, true},
#elif defined(__aarch64__)
    {&kNeonBf16, neon_bf16, true},
    {&kNeonDot, neon_dot, true},
    {&kNeon, always, true},
#endif
    {&kPlain, always, true},
#if defined(__x86_64__)
    {&kAmxEmulated, avx512_bf16, false},
#endif
};

const Kernels* find(const char* name) {
  for (const Choice& choice : kChoices)
    if ((name ? !strcmp(name, choice.table->name) : choice.automatic) && choice.runs())
      return choice.table;
  return nullptr;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* table = chosen.load();
  if (!table) {
    const char* wish = getenv("SGL_KERNEL_ISA");
    table = wish && *wish ? find(wish) : nullptr;
    if (!table) table = find(nullptr);
    chosen.store(table);
  }
  return *table;
}

bool choose(const char* name) {
  const Kernels* table = find(name && *name ? name : nullptr);
  if (table) chosen.store(table);
  return table != nullptr;
}

const char* available(int index) {
  for (const Choice& choice : kChoices)
    if (choice.runs() && index-- == 0) return choice.table->name;
  return nullptr;
}

}  // namespace sgl
