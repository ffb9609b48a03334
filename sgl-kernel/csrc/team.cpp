#include "team.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sgl {
namespace {

constexpr int kMaxThreads = 64;
constexpr int kSpins = 1000;  // some ten microseconds
// Times that a member which waits gives its core to others before it sleeps. Waking takes long where
// an idle core has to be fetched back from a hypervisor: longer than several operations of a pass,
// and as long as a small pass. So members stay awake within a call, and for some milliseconds behind
// it, until which the next pass of a batch has come.
constexpr int kYields = 4000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// Whether `done` came true before it is time to sleep.
template <class Done>
inline bool awake(const Done& done) {
  for (int i = 0; i < kSpins; i++) {
    if (done()) return true;
    pause();
  }
  for (int i = 0; i < kYields; i++) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

// Processor time of this thread, in nanoseconds; where the system does not tell, the time.
inline int64_t processor_time() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  timespec t;
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0) return t.tv_sec * 1000000000LL + t.tv_nsec;
#endif
  return now();
}

// How many members are left out, since other programs compute on their cores. At a barrier all wait
// for the member that has no core; where programs take turns by milliseconds, a team of all cores
// beside one busy program is slower than a team of one core less.
//
// Members add what they lost in a call: time in which they had no core, or slept at a barrier for
// one that had none. Where that is more than kMuch over kLong of calls, later calls leave out a
// member. After `wait_` they try with one more, and kShort of calls decide; `wait_` doubles each time
// that a member is left out, and is kShortest again once all are back and have their cores.
class Crowding {
 public:
  // Before a call, by the caller: the size of its team where `threads` are asked for.
  int fitting(int threads) {
    if (out_ > 0 && now() > until_) {
      out_--, lost_ = spent_ = 0;
      until_ = now() + wait_;  // where more are left out, each is tried for as long
    }
    return std::max(threads - out_, 1);
  }

  void add(int64_t lost) {  // by a member, at the end of its part
    int64_t most = worst_.load();
    while (lost > most && !worst_.compare_exchange_weak(most, lost)) continue;
  }

  // At the end of a call of several members that took `spent` nanoseconds, by the caller; `asked`
  // is what `fitting` was given.
  void ended(int asked, int64_t spent) {
    lost_ += std::min(worst_.exchange(0), spent), spent_ += spent;
    if (spent_ < (wait_ == kShortest ? kLong : kShort)) return;
    if (lost_ > kMuch * static_cast<double>(spent_)) {
      out_ = std::max(out_, std::min(out_ + 1, asked - 1));
      wait_ = std::min(2 * wait_, kLongest);
      until_ = now() + wait_;
    } else if (out_ == 0) {
      wait_ = kShortest;
    }
    lost_ = spent_ = 0;
  }

 private:
  static constexpr int64_t kLong = 250000000, kShort = 20000000, kShortest = 25000000,
                           kLongest = 1000000000;
  static constexpr double kMuch = 0.4;
  std::atomic<int64_t> worst_{0};  // of the members of this call
  int out_ = 0;
  int64_t lost_ = 0, spent_ = 0, until_ = 0, wait_ = kShortest;
};

}  // namespace

// A barrier of a fixed number of members. `epoch` is what they wait on; whoever sleeps is counted,
// so that a barrier nobody sleeps at costs no system call.
class Shared {
 public:
  void reset(int size) {
    size_ = size;
    arrived_.store(0);
    for (auto& counter : counters) counter.value.store(0);
  }

  void barrier() {
    uint32_t epoch = epoch_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      epoch_.fetch_add(1);
      if (sleepers_.load() > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
      }
      return;
    }
    if (awake([&] { return epoch_.load(std::memory_order_acquire) != epoch; })) return;
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    while (epoch_.load() == epoch) wake_.wait(lock);
    sleepers_.fetch_sub(1);
  }

  // Three in turn: while members use one, nobody uses the last one, and the next is at 0 since the
  // member that passes the barrier before it has cleared it.
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  } counters[3];

 private:
  int size_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

void Team::barrier() {
  if (size > 1) shared_->barrier();
}

std::atomic<int64_t>& Team::counter() {
  uint32_t phase = phase_++;
  // Everyone has left the counter before this one (a barrier lies between), so the one after this
  // is free: it was left two barriers ago.
  shared_->counters[(phase + 1) % 3].value.store(0, std::memory_order_relaxed);
  return shared_->counters[phase % 3].value;
}

namespace {

class Pool {
 public:
  void run(int threads, Job job, void* argument) {
    if (threads == 1) return alone(job, argument);
    std::unique_lock<std::mutex> turn(turn_);
    const int asked = start(threads);
    threads = crowding_.fitting(asked);
    if (threads == 1) {
      turn.unlock();
      return alone(job, argument);
    }
    shared_.reset(threads);
    job_ = job, argument_ = argument;
    left_.store(threads - 1);
    call_.store(((call_.load() >> 8) + 1) << 8 | static_cast<uint64_t>(threads));
    if (sleepers_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    int64_t begin = now();
    take_part(0, threads);
    for (int i = 0; left_.load(std::memory_order_acquire) > 0; i++) {
      if (i < kSpins) pause();
      else std::this_thread::yield();
    }
    crowding_.ended(asked, now() - begin);
  }

 private:
  static void alone(Job job, void* argument) {
    Team team(nullptr, 0, 1);
    job(team, argument);
  }

  void take_part(int rank, int size) {
    Team team(&shared_, rank, size);
    int64_t time = now(), own = processor_time();
    job_(team, argument_);
    crowding_.add((now() - time) - (processor_time() - own));
  }

  // Starts what lacks of a team of `threads`; the size that can be had.
  int start(int threads) {
    while (started_ < threads - 1) {
      int rank = started_ + 1;
      uint64_t seen = call_.load();
      try {
        std::thread([this, rank, seen] { work(rank, seen); }).detach();
      } catch (const std::system_error&) {  // a limit of the system
        return started_ + 1;
      }
      started_++;
    }
    return threads;
  }

  void work(int rank, uint64_t seen) {
    for (;;) {
      seen = await(seen);
      int size = static_cast<int>(seen & 255);
      if (rank >= size) continue;  // and touch nothing: the caller does not wait for this one
      take_part(rank, size);
      left_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  uint64_t await(uint64_t seen) {
    uint64_t call = seen;
    if (awake([&] { return (call = call_.load(std::memory_order_acquire)) != seen; })) return call;
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    while ((call = call_.load()) == seen) wake_.wait(lock);
    sleepers_.fetch_sub(1);
    return call;
  }

  Shared shared_;
  Crowding crowding_;
  std::mutex turn_, mutex_;
  std::condition_variable wake_;
  int started_ = 0;  // threads beside the callers', never ended
  Job job_ = nullptr;
  void* argument_ = nullptr;
  alignas(64) std::atomic<uint64_t> call_{0};  // number of the call, and its threads (low 8 bits)
  std::atomic<int> left_{0}, sleepers_{0};
};

// Never destroyed: its threads may still run when the process ends. A forked child has no threads
// but its own, so it starts with a new pool.
Pool* pool = nullptr;
std::once_flag once;

}  // namespace

int team_size(int threads) {
  return threads < 1 ? 1 : threads > kMaxThreads ? kMaxThreads : threads;
}

void run(int threads, Job job, void* argument) {
  std::call_once(once, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
  });
  pool->run(team_size(threads), job, argument);
}

}  // namespace sgl
