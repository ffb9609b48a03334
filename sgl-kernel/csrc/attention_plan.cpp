#include "attention_plan.h"

#include <algorithm>
#include <cstring>

namespace sgl {
namespace {

constexpr int64_t kStateBytes = 384 << 10;  // states of one slice: about half of a core's own cache
constexpr int64_t kPieces = 8;              // slices a thread, so that none waits long for another
constexpr int64_t kTile = 16;               // queries (of all heads of a group) that are not cut
constexpr int64_t kPacking = 8;             // what packing a key costs, in queries

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Planner {
  const Pass& pass;
  const Heads& heads;
  int64_t group, limit;
  double want;  // of a slice's cost; at most that, for threads to be evenly busy
  Plan plan;
  int64_t records = 0;

  Planner(const Pass& pass, const Heads& heads, int threads, int64_t limit)
      : pass(pass), heads(heads), group(heads.q / heads.kv), limit(limit), plan{} {
    double total = 0;
    for (int64_t r = 0; r < pass.rows; r++) total += cost(r);
    want = threads > 1 ? total / static_cast<double>(threads * kPieces) : total;
  }

  int64_t length(int64_t row) const { return pass.starts[row] + pass.counts[row]; }

  // In queries times keys, of all heads.
  double cost(int64_t row) const {
    int64_t keys = length(row), count = pass.counts[row];
    int64_t seen = pass.starts[row] + (count + 1) / 2;
    if (heads.window) {
      seen = std::min(seen, heads.window);
      keys = std::min(keys, heads.window + count);
    }
    return static_cast<double>(heads.kv) *
           static_cast<double>(group * count * seen + kPacking * keys);
  }

  int64_t parts(double cost) const {
    return want > 0 ? std::max<int64_t>(1, static_cast<int64_t>(cost / want + 0.999)) : 1;
  }

  // Whether a row by itself may be cut at segments of its keys, into more pieces than it has heads.
  bool segmented(int64_t row, int64_t pieces) const {
    bool few = pass.counts[row] == 1 || pass.counts[row] * group <= kTile;
    return few && pieces > heads.kv && length(row) > kChunk * kSegment;
  }
  int64_t segments(int64_t row) const { return ceil_div(length(row), kChunk * kSegment); }
  int64_t records_of(int64_t row) const { return segments(row) * pass.counts[row] * heads.q; }

  // ---- which rows lie side by side -----------------------------------------------------------

  const int32_t* table(int64_t row) const { return pass.pages + pass.tables[row]; }
  int64_t whole(int64_t row) const { return length(row) / kChunk; }

  // Whole chunks that two rows have in common, known to be at least `from`.
  int32_t common(int64_t a, int64_t b, int64_t from) const {
    int64_t most = std::min(whole(a), whole(b));
    int64_t begin = from * kChunk / pass.page_size, end = ceil_div(most * kChunk, pass.page_size);
    const int32_t *x = table(a), *y = table(b);
    constexpr int64_t kStep = 256;
    while (begin < end) {
      int64_t step = std::min(kStep, end - begin);
      if (memcmp(x + begin, y + begin, static_cast<size_t>(step) * 4)) {
        while (x[begin] == y[begin]) begin++;
        return static_cast<int32_t>(std::max(from, begin * pass.page_size / kChunk));
      }
      begin += step;
    }
    return static_cast<int32_t>(most);
  }

  // Orders rows [a, b), which have their first `depth` chunks in common, as their tree has it.
  void arrange(int64_t a, int64_t b, int32_t depth) {
    int32_t *order = plan.order, *shared = plan.shared;
    if (b - a < 2) return;
    // The last page of the next chunk: where prefixes form a tree, rows that have it in common have
    // all before it in common too, which is then made sure of.
    int64_t place = ((depth + 1) * kChunk - 1) / pass.page_size;
    auto key = [&](int32_t row) { return whole(row) > depth ? table(row)[place] : -1; };
    std::sort(order + a, order + b, [&](int32_t x, int32_t y) {
      int32_t p = key(x), q = key(y);
      return p != q ? p < q : x < y;
    });
    for (int64_t i = a, j; i < b; i = j) {
      int32_t page = key(order[i]);
      for (j = i + 1; j < b && page >= 0 && key(order[j]) == page; j++) continue;
      if (i > a) shared[i] = depth;
      families(i, j, depth);
    }
  }

  // Rows [a, b) have `depth` chunks and a page of the next in common, but perhaps no chunk more.
  void families(int64_t a, int64_t b, int32_t depth) {
    int32_t *order = plan.order, *shared = plan.shared;
    while (b - a > 1) {
      int32_t least = INT32_MAX;
      int64_t end = a + 1;
      for (int64_t i = a + 1; i < b; i++) {
        int32_t chunks = common(order[a], order[i], depth);
        if (chunks <= depth) continue;
        least = std::min(least, chunks);
        std::rotate(order + end, order + i, order + i + 1);
        end++;
      }
      if (end - a > 1) {
        for (int64_t i = a + 1; i < end; i++) shared[i] = least;
        arrange(a, end, least);
      }
      if (end < b) shared[end] = depth;
      a = end;
    }
  }

  // ---- slices --------------------------------------------------------------------------------

  void emit(const Slice& slice) { plan.slices[plan.count++] = slice; }

  // Rows order[a..b): a tree of its own.
  void cut(int64_t a, int64_t b) {
    const int32_t* bases = plan.bases;
    double all = 0;
    for (int64_t i = a; i < b; i++) all += cost(plan.order[i]);
    int64_t pieces = parts(all), queries = bases[b] - bases[a];
    int64_t by_head = std::max(pieces, ceil_div(queries * heads.q, limit));
    int64_t per = ceil_div(heads.kv, std::min(by_head, heads.kv));
    int64_t head_parts = ceil_div(heads.kv, per);
    if (b - a == 1 && segmented(plan.order[a], pieces)) {
      cut_segments(a, per, ceil_div(pieces, head_parts), all);
      return;
    }
    int64_t rest = std::min(ceil_div(pieces, head_parts), ceil_div(queries * group, kTile));
    int64_t runs = std::max(ceil_div(queries * group * per, limit), rest);
    runs = std::min(runs, queries);
    for (int64_t run = 0; run < runs; run++) {
      auto begin = static_cast<int32_t>(bases[a] + queries * run / runs);
      auto end = static_cast<int32_t>(bases[a] + queries * (run + 1) / runs);
      auto after = [&](int32_t query) {  // rows that begin at or before this query
        return static_cast<int32_t>(std::upper_bound(bases + a, bases + b, query) - bases);
      };
      int32_t first = after(begin) - 1, last = after(end - 1);
      // Of one row, later queries see more keys.
      double weight = b - a == 1 ? 2. * static_cast<double>(run) + 1 : static_cast<double>(runs);
      weight *= all / static_cast<double>(runs * runs * head_parts);
      for (int64_t head = 0; head < heads.kv; head += per)
        emit({first, last, begin, end, static_cast<int32_t>(head),
              static_cast<int32_t>(std::min(per, heads.kv - head)), 0, 0, 0, weight});
    }
  }

  void cut_segments(int64_t a, int64_t per, int64_t pieces, double all) {
    int64_t row = plan.order[a], total = segments(row), parts = std::min(pieces, total);
    int64_t head_parts = ceil_div(heads.kv, per);
    plan.split = true;
    for (int64_t head = 0; head < heads.kv; head += per)
      for (int64_t part = 0; part < parts; part++) {
        int64_t from = total * part / parts, to = total * (part + 1) / parts;
        auto n = static_cast<int32_t>(std::min(per, heads.kv - head));
        emit({static_cast<int32_t>(a), static_cast<int32_t>(a + 1), plan.bases[a],
              plan.bases[a + 1], static_cast<int32_t>(head), n, static_cast<int32_t>(from),
              static_cast<int32_t>(to - from), records + total * pass.counts[row] * group * head,
              all / static_cast<double>(head_parts * parts)});
      }
    records += records_of(row);
  }
};

// Slices, at most: a tree of n queries in p pieces is cut into at most 4 (n q / limit + 1 + p) of
// them, and the pieces of all trees are at most one more for each tree than threads * kPieces.
int64_t most_slices(const Pass& pass, const Heads& heads, int threads, int64_t limit) {
  return 4 * (pass.tokens * heads.q / limit + 2 * pass.rows + threads * kPieces + 1);
}

int64_t slice_limit(const Heads& heads, int64_t floats) {
  return std::max(kStateBytes / (floats * 4), heads.q / heads.kv);
}

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

int64_t plan_queries(const Heads& heads, int64_t floats) {
  return slice_limit(heads, floats) + heads.q + kTile;  // cut by whole queries: perhaps one more
}

size_t plan_bytes(const Pass& pass, const Heads& heads, int threads, int64_t floats) {
  auto rows = static_cast<size_t>(pass.rows);
  auto slices = static_cast<size_t>(most_slices(pass, heads, threads, slice_limit(heads, floats)));
  return 3 * aligned((rows + 1) * 4) + aligned(slices * sizeof(Slice));
}

int64_t plan_records(const Pass& pass, const Heads& heads, int threads) {
  Planner planner(pass, heads, threads, 1);
  int64_t records = 0;
  for (int64_t r = 0; r < pass.rows; r++)
    if (planner.segmented(r, planner.parts(planner.cost(r)))) records += planner.records_of(r);
  return records;
}

Plan plan(const Pass& pass, const Heads& heads, int threads, int64_t floats, void* memory) {
  Planner planner(pass, heads, threads, slice_limit(heads, floats));
  Plan& plan = planner.plan;
  auto* at = static_cast<char*>(memory);
  size_t step = aligned((static_cast<size_t>(pass.rows) + 1) * 4);
  plan.order = reinterpret_cast<int32_t*>(at);
  plan.shared = reinterpret_cast<int32_t*>(at + step);
  plan.bases = reinterpret_cast<int32_t*>(at + 2 * step);
  plan.slices = reinterpret_cast<Slice*>(at + 3 * step);
  for (int64_t r = 0; r < pass.rows; r++) {
    plan.order[r] = static_cast<int32_t>(r);
    plan.shared[r] = 0;
  }
  planner.arrange(0, pass.rows, 0);
  plan.bases[0] = 0;
  for (int64_t i = 0; i < pass.rows; i++)
    plan.bases[i + 1] = plan.bases[i] + pass.counts[plan.order[i]];
  for (int64_t a = 0, b; a < pass.rows; a = b) {
    for (b = a + 1; b < pass.rows && plan.shared[b] > 0; b++) continue;
    planner.cut(a, b);
  }
  // The longest first: what is left in the end is short.
  std::sort(plan.slices, plan.slices + plan.count, [](const Slice& x, const Slice& y) {
    if (x.cost != y.cost) return x.cost > y.cost;
    if (x.begin != y.begin) return x.begin < y.begin;
    return x.head != y.head ? x.head < y.head : x.segment < y.segment;
  });
  return plan;
}

}  // namespace sgl
