// Which kernels run: the best that processor and operating system allow, or those asked for by name.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "tiles.h"

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
#endif
bool always() { return true; }

// Best first.
const Choice kChoices[] = {
#if defined(__x86_64__)
    {&kAmx, amx, true},
    {&kAvx512Bf16, avx512_bf16, true},
    {&kAvx512, avx512, true},
    {&kAvx2, avx2, true},
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
