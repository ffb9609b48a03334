// Crowding: how many threads of a team are left out, because other programs compute on their cores.
//
// At a barrier all members wait for the one that has no core. Where programs take turns by
// milliseconds, a team of all cores beside one busy program is slower than a team of one core less.
//
// Members add what they lost in a call: time in which they had no core, or slept at a barrier for
// one that had none. Where that is more than kMuch over kLong of calls, later calls leave out a
// member. After `wait_` they try with one more, and kShort of calls decide; `wait_` doubles each time
// that a member is left out, and is kShortest again once all are back and have their cores. Time
// without calls counts: after a long pause more than one is tried.
//
// The caller gives the time, in nanoseconds from any beginning. Calls are one after the other; only
// `add` is called by several threads at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace sgl {

class Crowding {
 public:
  static constexpr int64_t kLong = 250000000, kShort = 20000000, kShortest = 25000000,
                           kLongest = 1000000000;
  static constexpr double kMuch = 0.4;

  // Before a call: the size of its team where `threads` can be had, 1 at least.
  int fitting(int threads, int64_t now) {
    for (; out_ > 0 && now > until_; until_ += wait_) out_--, lost_ = spent_ = 0;
    return std::max(threads - out_, 1);
  }

  void add(int64_t lost) {  // by a member, at the end of its part
    int64_t most = worst_.load();
    while (lost > most && !worst_.compare_exchange_weak(most, lost)) continue;
  }

  // At the end of a call of several members that took `spent` nanoseconds. For `excused` of these all
  // waited for another process. `threads` is what `fitting` was given.
  void ended(int threads, int64_t spent, int64_t excused, int64_t now) {
    lost_ += std::clamp<int64_t>(worst_.exchange(0) - excused, 0, spent), spent_ += spent;
    if (spent_ < (wait_ == kShortest ? kLong : kShort)) return;
    if (static_cast<double>(lost_) > kMuch * static_cast<double>(spent_)) {
      out_ = std::max(out_, std::min(out_ + 1, threads - 1));
      wait_ = std::min(2 * wait_, kLongest);
      until_ = now + wait_;
    } else if (out_ == 0) {
      wait_ = kShortest;
    }
    lost_ = spent_ = 0;
  }

 private:
  std::atomic<int64_t> worst_{0};  // of the members of this call
  int out_ = 0;
  int64_t lost_ = 0, spent_ = 0, until_ = 0, wait_ = kShortest;
};

}  // namespace sgl
