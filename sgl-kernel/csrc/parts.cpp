#include "parts.h"

#include <algorithm>

namespace sgl {
namespace {

constexpr size_t kMost = 8 << 20;  // bytes of scratch memory, where a part does not need more

size_t bytes_each(const Parts& parts, int64_t m) {
  return (kernels().scratch_bytes(parts[0], m) + 63) / 64 * 64;
}

int64_t at_once(const Parts& parts, size_t each) {
  const auto fit = static_cast<int64_t>(each && each < kMost ? kMost / each : 1);
  return std::min(fit, static_cast<int64_t>(parts.size()));
}

}  // namespace

size_t parts_bytes(const Parts& parts, int64_t m) {
  const size_t each = bytes_each(parts, m);
  return each * static_cast<size_t>(at_once(parts, each));
}

void multiply_parts(Team& team, const Parts& parts, const float* x, int64_t ldx, Columns from,
                    int64_t m, float* y, int64_t ldy, Columns to, void* scratch) {
  const Kernels& k = kernels();
  const size_t each = bytes_each(parts, m);
  const int64_t step = at_once(parts, each), count = static_cast<int64_t>(parts.size());
  auto w = [&](int64_t i) -> const Matrix& { return parts[static_cast<size_t>(i)]; };
  for (int64_t first = 0; first < count; first += step) {
    const int64_t last = std::min(first + step, count);
    auto room = [&](int64_t i) {
      return static_cast<char*>(scratch) + each * static_cast<size_t>(i - first);
    };
    for (int64_t i = first; i < last; i++)
      k.prepare(team, w(i), {}, x + from.first + i * from.apart, ldx, m, room(i));
    team.barrier();
    for (int64_t i = first; i < last; i++)
      k.multiply(team, w(i), room(i), m, {}, y + to.first + i * to.apart, ldy);
    team.barrier();
  }
}

}  // namespace sgl
