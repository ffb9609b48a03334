#include "meeting.h"

#include <algorithm>
#include <cstring>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sgl {
namespace {

// Looks before a rank sleeps. Ranks may share their cores: whoever waits gives its own away early.
constexpr int kYields = 200;

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, nullptr, nullptr, 0);
#else
  std::this_thread::yield();
#endif
}

void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
          0);
#endif
}

// Whether `turn` is reached: turns wrap around.
bool reached(uint32_t said, uint32_t turn) { return static_cast<int32_t>(said - turn) >= 0; }

}  // namespace

size_t Meeting::bytes(int size) {
  return kMost * sizeof(Sign) + 2 * static_cast<size_t>(size) * kSlot * sizeof(float);
}

void Meeting::say_and_wait(Team& team, uint32_t turn) {
  Sign& mine = sign(rank_);
  mine.turn.store(turn);
  if (mine.sleepers.load() > 0) wake_all(mine.turn);
  for (int r = 0; r < size_; r++) {
    Sign& other = sign(r);
    for (int i = 0; i < kYields && !reached(other.turn.load(), turn); i++)
      std::this_thread::yield();
    uint32_t said;
    if (reached(other.turn.load(), turn)) continue;
    int64_t begin = nanoseconds();
    other.sleepers.fetch_add(1);
    while (!reached(said = other.turn.load(), turn)) sleep_while(other.turn, said);
    other.sleepers.fetch_sub(1);
    team.excuse(nanoseconds() - begin);
  }
}

void Meeting::sum(Team& team, const float* x, float* out, int64_t count, bool add) {
  uint32_t turn = turn_;
  for (int64_t first = 0; first < count; first += kSlot) {
    int64_t here = std::min(kSlot, count - first);
    Range mine = team.part(here, 16);
    turn++;
    if (!mine.empty())
      memcpy(slot(turn, rank_) + mine.begin, x + first + mine.begin,
             static_cast<size_t>(mine.end - mine.begin) * sizeof(float));
    team.barrier();
    if (team.rank == 0) say_and_wait(team, turn);
    team.barrier();
    for (int64_t i = mine.begin; i < mine.end; i++) {
      float total = slot(turn, 0)[i];
      for (int r = 1; r < size_; r++) total += slot(turn, r)[i];
      out[first + i] = add ? out[first + i] + total : total;
    }
  }
  if (team.rank == 0) turn_ = turn;  // all members have read it: barriers lie between
}

void Meeting::gather(Team& team, const float* x, float* out, int64_t rows, int64_t width) {
  uint32_t turn = turn_;
  int64_t count = rows * width;
  for (int64_t first = 0; first < count; first += kSlot) {
    int64_t here = std::min(kSlot, count - first);
    Range mine = team.part(here, 16);
    turn++;
    if (!mine.empty())
      memcpy(slot(turn, rank_) + mine.begin, x + first + mine.begin,
             static_cast<size_t>(mine.end - mine.begin) * sizeof(float));
    team.barrier();
    if (team.rank == 0) say_and_wait(team, turn);
    team.barrier();
    for (int r = 0; r < size_; r++) {
      for (int64_t i = mine.begin; i < mine.end;) {  // a run of one row at a time
        int64_t row = (first + i) / width, column = (first + i) % width;
        int64_t run = std::min(width - column, mine.end - i);
        memcpy(out + (row * size_ + r) * width + column, slot(turn, r) + i,
               static_cast<size_t>(run) * sizeof(float));
        i += run;
      }
    }
  }
  if (team.rank == 0) turn_ = turn;
}

}  // namespace sgl
