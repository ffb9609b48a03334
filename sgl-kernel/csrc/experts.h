// Mixture: an Experts and the tables it points to, made once of what the caller has checked.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels.h"

namespace sgl {

struct Mixture {
  std::vector<Matrix> gate_up, down;
  std::vector<const float*> gate_up_bias, down_bias;
  Experts experts;

  // gate_up, down: one for each expert, the shared one last; biases or nulls.
  Mixture(const Experts& rest, std::vector<Matrix> up, std::vector<Matrix> back,
          std::vector<const float*> up_bias, std::vector<const float*> back_bias)
      : gate_up(std::move(up)), down(std::move(back)), gate_up_bias(std::move(up_bias)),
        down_bias(std::move(back_bias)), experts(rest) {
    auto same = [&](const std::vector<Matrix>& all) {
      auto end = all.begin() + static_cast<std::ptrdiff_t>(experts.routing.experts);
      return std::all_of(all.begin(), end, [&](const Matrix& w) {
        return w.format == all[0].format && w.k == all[0].k && w.group == all[0].group;
      });
    };
    experts.alike = same(gate_up) && same(down);
    experts.gate_up = gate_up.data(), experts.down = down.data();
    experts.gate_up_bias = gate_up_bias.data(), experts.down_bias = down_bias.data();
  }
  Mixture(const Mixture&) = delete;
};

}  // namespace sgl
