// Meeting: sums over the processes of one machine that hold shares of the same layers, through memory
// that all of them map.
//
// Each process has two slots that it writes in turn. At a turn all write, all say that they have
// written, and all read the slots of all, in the order of the ranks: so the sums are the same bits
// everywhere. A process says so only after it has read what was written at the turn before, which is
// why two slots are enough.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "team.h"

namespace sgl {

class Meeting {
 public:
  static constexpr int64_t kSlot = 1 << 16;  // floats that are exchanged at a turn
  static constexpr int kMost = 64;           // ranks

  // Bytes of the memory that `size` ranks need: zeros before the first one comes.
  static size_t bytes(int size);

  Meeting(void* memory, int rank, int size) : memory_(memory), rank_(rank), size_(size) {}

  // out[i] = (add ? out[i] : 0) + the sum of x[i] over the ranks. Called by all members of a team, of
  // every rank with the same count. x and out may be the same.
  void sum(Team&, const float* x, float* out, int64_t count, bool add);

  // out [rows, size * width]: the ranks' x [rows, width] side by side.
  void gather(Team&, const float* x, float* out, int64_t rows, int64_t width);

 private:
  // One a rank: the turn that it has written, and how many wait for that.
  struct alignas(64) Sign {
    std::atomic<uint32_t> turn;
    std::atomic<uint32_t> sleepers;
  };
  Sign& sign(int rank) const { return static_cast<Sign*>(memory_)[rank]; }
  float* slot(uint32_t turn, int rank) const {
    char* slots = static_cast<char*>(memory_) + kMost * sizeof(Sign);
    return reinterpret_cast<float*>(slots) + ((turn & 1) * size_ + rank) * kSlot;
  }
  void say_and_wait(Team& team, uint32_t turn);

  void* memory_;
  const int rank_, size_;
  uint32_t turn_ = 0;  // the last one that is over
};

}  // namespace sgl
