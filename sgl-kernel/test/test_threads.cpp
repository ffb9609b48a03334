// Tests of the threads below the kernels (csrc/team.*) and of sums over processes (csrc/meeting.*),
// without Python: `make kernels-threads` builds them plainly and with each sanitizer.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../csrc/crowding.h"
#include "../csrc/meeting.h"
#include "../csrc/team.h"

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (0)

namespace {

using sgl::Range;
using sgl::Team;

// Shares of members lie side by side, cover everything, and begin at multiples of the grain.
void part_covers_everything_once() {
  for (int size = 1; size <= 9; size++)
    for (int64_t count : {0, 1, 7, 64, 1000})
      for (int64_t grain : {1, 16}) {
        int64_t end = 0;
        for (int rank = 0; rank < size; rank++) {
          Range mine = Team(nullptr, rank, size).part(count, grain);
          CHECK(mine.begin % grain == 0);
          if (mine.empty()) continue;
          CHECK(mine.begin == end);
          end = mine.end;
        }
        CHECK(end == count);
      }
}

// Teams of any size after one another: every member runs once a call, and there are no more members
// than threads were asked for. There may be fewer.
void run_starts_every_member_once() {
  for (int threads : {1, 4, 2, 7, 3, 7, 1, 5}) {
    std::vector<int> ran(static_cast<size_t>(threads), 0), sizes(ran);
    auto body = [&](Team& team) {
      ran[static_cast<size_t>(team.rank)]++;
      sizes[static_cast<size_t>(team.rank)] = team.size;
    };
    sgl::parallel(threads, body);
    CHECK(sizes[0] >= 1 && sizes[0] <= threads);
    for (int rank = 0; rank < threads; rank++) {
      CHECK(ran[static_cast<size_t>(rank)] == (rank < sizes[0]));
      CHECK(sizes[static_cast<size_t>(rank)] == (rank < sizes[0] ? sizes[0] : 0));
    }
  }
}

// The time after `calls` calls of a millisecond, in each of which the worst member of a team lost
// `lost` microseconds; or at which the team has one member, which measures nothing.
constexpr int64_t kMillisecond = 1000000;
int64_t lose(sgl::Crowding& team, int threads, int64_t now, int calls, int64_t lost,
             int64_t excused = 0) {
  for (int call = 0; call < calls; call++) {
    if (team.fitting(threads, now) == 1) return now;
    now += kMillisecond;
    team.add(lost * 1000);
    team.ended(threads, kMillisecond, excused * 1000, now);
  }
  return now;
}

// A team of any size leaves out one member after the other, never all.
void a_crowded_team_shrinks_to_one() {
  for (int threads : {2, 3, 4, 16}) {
    sgl::Crowding team;
    int64_t now = lose(team, threads, 0, 249, 900);
    CHECK(team.fitting(threads, now) == threads);  // 250 ms have to tell it
    now = lose(team, threads, now, 1, 900);
    CHECK(team.fitting(threads, now) == threads - 1);
    for (int out = 2; out < threads; out++) {
      now = lose(team, threads, now, 20, 900);
      CHECK(team.fitting(threads, now) == threads - out);
    }
    CHECK(team.fitting(threads, now) == 1);
  }
}

// Members that have their cores, or wait for another process, are not left out; nor a second one
// where one less is enough.
void members_that_compute_stay() {
  sgl::Crowding team;
  int64_t now = lose(team, 4, 0, 1000, 300);
  now = lose(team, 4, now, 1000, 900, 700);
  CHECK(team.fitting(4, now) == 4);

  sgl::Crowding other;
  now = lose(other, 4, 0, 250, 900);
  CHECK(other.fitting(4, now) == 3);
  lose(other, 4, now, 40, 0);
  CHECK(other.fitting(4, now) == 3);
}

// Members come back: one at a time where calls follow one another, all after a long pause.
void members_come_back() {
  sgl::Crowding team;
  int64_t now = 0;
  while (team.fitting(4, now) > 1) now = lose(team, 4, now, 1, 900);
  int64_t begin = now;
  int size = 1;
  for (; now < begin + 10000 * kMillisecond && size < 4; now += kMillisecond) {
    int next = team.fitting(4, now);
    CHECK(next == size || next == size + 1);
    size = next;
    if (size > 1) team.ended(4, kMillisecond, 0, now);
  }
  CHECK(size == 4 && now - begin <= 3 * 1000 * kMillisecond);

  sgl::Crowding idle;
  now = 0;
  while (idle.fitting(4, now) > 1) now = lose(idle, 4, now, 1, 900);
  CHECK(idle.fitting(4, now + 60000 * kMillisecond) == 4);
}

// A member that is tried beside busy programs is left out after 20 ms, and for longer each time.
void trials_are_short_and_get_rarer() {
  sgl::Crowding team;
  int64_t now = lose(team, 2, 0, 250, 900), before = 0;
  for (int trial = 0; trial < 8; trial++) {
    CHECK(team.fitting(2, now) == 1);
    int64_t begin = now;
    while (team.fitting(2, now) == 1) now += kMillisecond;
    CHECK(now - begin >= before && now - begin <= 1001 * kMillisecond);
    before = now - begin;
    now = lose(team, 2, now, 20, 900);
  }
  CHECK(before >= 1000 * kMillisecond);
}

// Where other programs compute on all cores, a team gets smaller, and later calls are still right.
void team_is_smaller_beside_busy_programs() {
  const int threads =
      sgl::team_size(std::max(2, static_cast<int>(std::thread::hardware_concurrency())));
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 2 * threads; i++)
    busy.emplace_back([&] {
      while (!stop.load()) continue;
    });
  auto smallest_until = [&](int wanted) {
    int size = threads + 1;
    for (int call = 0; call < 20000 && size != wanted; call++) {
      std::atomic<int64_t> total{0};
      auto body = [&](Team& team) {
        if (team.rank == 0) size = team.size;
        team.each(64, [&](int64_t i) {
          for (volatile int spin = 0; spin < 1000; spin = spin + 1) continue;
          total.fetch_add(i);
        });
      };
      sgl::parallel(threads, body);
      CHECK(total.load() == 64 * 63 / 2);
    }
    return size;
  };
  CHECK(smallest_until(threads - 1) == threads - 1);
  stop.store(true);
  for (std::thread& one : busy) one.join();
}

// What members wrote before a barrier, plainly, is read by all behind it.
void barrier_publishes_what_was_written() {
  constexpr int kThreads = 4, kRounds = 300;
  int64_t values[kThreads] = {};
  auto body = [&](Team& team) {
    for (int64_t round = 1; round <= kRounds; round++) {
      values[team.rank] = round * (team.rank + 1);
      team.barrier();
      for (int other = 0; other < team.size; other++) CHECK(values[other] == round * (other + 1));
      team.barrier();
    }
  };
  sgl::parallel(kThreads, body);
}

// Tasks are done once each, in several loops without a barrier of the caller's between them.
void each_does_every_task_once() {
  std::vector<int> first(1000, 0), second(37, 0), third(64, 0);
  for (int threads : {1, 3, 6}) {
    auto count_in = [](std::vector<int>& tasks) {
      return [&tasks](int64_t i) { tasks[static_cast<size_t>(i)]++; };
    };
    auto body = [&](Team& team) {
      for (int turn = 0; turn < 5; turn++) {
        team.each(1000, count_in(first));
        team.each(37, count_in(second));
        team.each(0, count_in(third));
        team.each(64, count_in(third));
      }
    };
    sgl::parallel(threads, body);
  }
  for (auto* tasks : {&first, &second, &third})
    for (int count : *tasks) CHECK(count == 15);
}

// Calls from several threads take turns and do not mix.
void calls_of_several_threads_take_turns() {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; caller++)
    callers.emplace_back([caller] {
      for (int call = 0; call < 50; call++) {
        std::vector<int64_t> sums(4, 0);
        auto body = [&](Team& team) {
          for (int64_t i = 0; i <= caller + call; i++) sums[static_cast<size_t>(team.rank)] += i;
        };
        sgl::parallel(4, body);
        int64_t last = caller + call, size = 0;
        for (int64_t sum : sums) {
          CHECK(sum == last * (last + 1) / 2 || sum == 0);
          size += sum > 0;
        }
        CHECK(size >= 1 || last == 0);
      }
    });
  for (std::thread& caller : callers) caller.join();
}

// Ranks are threads here, each a team of one, with shared memory: equal sums, in the ranks' order, of
// more floats than a slot holds.
void ranks_meet_with_equal_sums() {
  constexpr int kRanks = 3;
  const int64_t kCount = sgl::Meeting::kSlot + 1000;
  std::vector<char> memory(sgl::Meeting::bytes(kRanks) + 64, 0);
  void* aligned =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~63ul);
  std::vector<std::vector<float>> sums(kRanks), gathered(kRanks);
  auto rank_of = [&](int rank) {
    sgl::Meeting meeting(aligned, rank, kRanks);
    Team alone(nullptr, 0, 1);
    std::vector<float> x(static_cast<size_t>(kCount));
    for (int64_t i = 0; i < kCount; i++)
      x[static_cast<size_t>(i)] = .1f * static_cast<float>(i % 97 + rank);
    auto& sum = sums[static_cast<size_t>(rank)];
    sum.assign(x.size(), 1);
    for (int turn = 0; turn < 3; turn++) meeting.sum(alone, x.data(), sum.data(), kCount, turn > 0);
    auto& all = gathered[static_cast<size_t>(rank)];
    all.resize(6 * kRanks);
    meeting.gather(alone, x.data(), all.data(), 2, 3);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; rank++) ranks.emplace_back(rank_of, rank);
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 1; rank < kRanks; rank++) {
    CHECK(sums[static_cast<size_t>(rank)] == sums[0]);
    CHECK(gathered[static_cast<size_t>(rank)] == gathered[0]);
  }
  CHECK(sums[0][0] > .89f && sums[0][0] < .91f);  // three turns of 0 + .1 + .2
  for (int row = 0; row < 2; row++)
    for (int rank = 0; rank < kRanks; rank++)
      for (int i = 0; i < 3; i++)
        CHECK(gathered[0][static_cast<size_t>((row * kRanks + rank) * 3 + i)] ==
              .1f * static_cast<float>(row * 3 + i + rank));
}

}  // namespace

int main() {
  part_covers_everything_once();
  a_crowded_team_shrinks_to_one();
  members_that_compute_stay();
  members_come_back();
  trials_are_short_and_get_rarer();
  run_starts_every_member_once();
  barrier_publishes_what_was_written();
  each_does_every_task_once();
  calls_of_several_threads_take_turns();
  ranks_meet_with_equal_sums();
  team_is_smaller_beside_busy_programs();
  std::puts("11 tests passed");
}
