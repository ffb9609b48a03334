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

#include "crowding.h"

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
  return nanoseconds();
}

}  // namespace

int64_t nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// A barrier of a fixed number of members. `epoch` is what they wait on; whoever sleeps is counted,
// so that a barrier nobody sleeps at costs no system call.
class Shared {
 public:
  void reset(int size) {
    size_ = size;
    arrived_.store(0);
    excused.store(0);
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

  std::atomic<int64_t> excused{0};  // nanoseconds of the call in which all waited for a process

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

void Team::excuse(int64_t waited) {
  if (size > 1) shared_->excused.fetch_add(waited);
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
    int64_t begin = nanoseconds();
    threads = crowding_.fitting(asked, begin);
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
    if (threads > last_) {
      std::lock_guard<std::mutex> lock(mutex_);
      grown_.notify_all();
    }
    last_ = threads;
    take_part(0, threads);
    for (int i = 0; left_.load(std::memory_order_acquire) > 0; i++) {
      if (i < kSpins) pause();
      else std::this_thread::yield();
    }
    int64_t end = nanoseconds();
    crowding_.ended(asked, end - begin, shared_.excused.load(), end);
  }

 private:
  static void alone(Job job, void* argument) {
    Team team(nullptr, 0, 1);
    job(team, argument);
  }

  void take_part(int rank, int size) {
    Team team(&shared_, rank, size);
    int64_t time = nanoseconds(), own = processor_time();
    job_(team, argument_);
    crowding_.add((nanoseconds() - time) - (processor_time() - own));
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

  static int members(uint64_t call) { return static_cast<int>(call & 255); }

  void work(int rank, uint64_t seen) {
    for (seen = await(seen);; seen = rank < members(seen) ? await(seen) : await_part(rank)) {
      if (rank >= members(seen)) continue;  // and touch nothing: the caller does not wait for this
      take_part(rank, members(seen));
      left_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  // Waits for a call that has a part for `rank`, where the last one had none. The thread sleeps at
  // once: another program may compute on its core.
  uint64_t await_part(int rank) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (rank >= members(call_.load())) grown_.wait(lock);
    return call_.load();
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
  std::condition_variable wake_, grown_;  // a call has begun; one of more members than the last
  int started_ = 0;                       // threads beside the callers', never ended
  int last_ = 1;                          // members of the last call of several
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
