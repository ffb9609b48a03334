// What attention has to do in one pass, cut into pieces for threads.
//
// Rows whose page tables begin with the same pages are put side by side, so that keys which several
// rows share are read once for all of them, whatever the tree that their prefixes form (Parrot, Lin
// et al. 2024, section 7). How work is cut never changes a result: a query meets chunks of keys at
// fixed positions, one after another, joined at fixed segments; only who does it differs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace sgl {

constexpr int64_t kChunk = 64;   // keys that are packed together
constexpr int64_t kSegment = 8;  // chunks whose result stands by itself before it is joined

// Queries [begin, end), counted through rows order[first..last), for key heads
// [head, head + heads).
struct Slice {
  int32_t first, last, begin, end, head, heads;
  int32_t segment, segments;  // segments > 0: only these, for one row; joined in the end
  int64_t partial;            // where their results lie: the record of segment 0, in records
  double cost;
};

struct Plan {
  int32_t* order;   // [rows]
  int32_t* shared;  // [rows] whole chunks that a row has in common with the one before it in order
  int32_t* bases;   // [rows + 1] queries of the rows before it in order
  Slice* slices;
  int64_t count;
  bool split;  // some slices are segments
};

// A query's state takes `floats` of memory, and a slice at most plan_queries(heads, floats) states.
int64_t plan_queries(const Heads&, int64_t floats);
size_t plan_bytes(const Pass&, const Heads&, int threads, int64_t floats);
int64_t plan_records(const Pass&, const Heads&, int threads);  // of segments' results, at most
Plan plan(const Pass&, const Heads&, int threads, int64_t floats, void* memory);

}  // namespace sgl
