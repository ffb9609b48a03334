// Team: threads that run one function together, in step.
//
// A native call runs a whole forward pass, hundreds of operations long, so threads are woken once a
// call, not once an operation. Between operations they meet at a barrier: they spin for some tens of
// microseconds and then sleep, since a machine that is shared may keep a member waiting for long.
//
// Every kernel is written as "what member `rank` of `size` does". Who computes what must never
// change a result: each output is computed by one member, always in the same order.
#pragma once

#include <atomic>
#include <cstdint>

namespace sgl {

struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

class Shared;  // what the members of a team have in common

class Team {
 public:
  Team(Shared* shared, int rank, int size) : rank(rank), size(size), shared_(shared) {}

  const int rank, size;

  // All members have arrived; what each wrote before is seen by all after.
  void barrier();

  // By a member, while the others wait at the barrier: for `waited` nanoseconds it waited for another
  // process, which says nothing about the cores of this one.
  void excuse(int64_t waited);

  // This member's share of [0, count), in multiples of `grain`.
  Range part(int64_t count, int64_t grain = 1) const {
    int64_t blocks = (count + grain - 1) / grain;
    int64_t begin = blocks * rank / size * grain, end = blocks * (rank + 1) / size * grain;
    return {begin, end < count ? end : count};
  }

  // Calls work(i) for every i in [0, count), each by whichever member is free; ends with a barrier.
  // For work that is uneven, or on cores that are: a slow member gets less of it.
  template <class Work>
  void each(int64_t count, const Work& work) {
    if (size == 1) {
      for (int64_t i = 0; i < count; i++) work(i);
      return;
    }
    std::atomic<int64_t>& next = counter();
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
    barrier();
  }

 private:
  std::atomic<int64_t>& counter();  // at 0 when the first member asks for it
  Shared* shared_;
  uint32_t phase_ = 0;  // how many counters this member has asked for
};

using Job = void (*)(Team&, void*);

// The size of the largest team that is made where `threads` are asked for: 1 at least. Scratch
// memory that is cut by members is sized with it.
int team_size(int threads);

// Runs job(team, argument) on team_size(threads) threads, the calling one included; on fewer where
// the system has no more, or where other programs compute on their cores. Calls from several threads
// take turns.
void run(int threads, Job job, void* argument);

// Time of a clock that only goes forward.
int64_t nanoseconds();

// The same as `run`, for a callable.
template <class Body>
void parallel(int threads, Body& body) {
  run(threads, [](Team& team, void* b) { (*static_cast<Body*>(b))(team); }, &body);
}

}  // namespace sgl
