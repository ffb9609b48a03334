// Tape: a forward pass recorded once, as operations on buffers, and run in one native call.
//
// A buffer is float32 [tokens of the pass, width]. Operations run in the order they were added, every
// one by all threads; a barrier lies behind each. What they point to (weights, gains, pools) belongs
// to the caller and must outlive the tape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "meeting.h"
#include "parts.h"

namespace sgl {

class Tape {
 public:
  // Returns the buffer's number.
  int64_t buffer(int64_t width);

  // out[t] = scale * row ids[t] of the table, or what the pass gives for token t.
  void embed(int64_t out, const Matrix& table, float scale);
  // From here on only the tokens that the caller asks for: out = the chosen rows of x. All buffers
  // written later hold these rows alone.
  void choose(int64_t out, int64_t x);
  // out[t][i] = x[t][order[i]].
  void reorder(int64_t out, int64_t x, const int32_t* order);
  // Of columns [first, first + count) of x, to as many of out from `to` on.
  void norm(int64_t out, int64_t to, int64_t x, const FullNorm&, int64_t first, int64_t count);
  void activate(int64_t x, Activation);
  // x[t] += row positions[t] of table [positions, width of x]; before any choice.
  void place(int64_t x, const float* table);
  void linear(int64_t out, int64_t x, const Matrix&, const Norm&, const Epilogue&);
  // out += experts(norm(x)).
  void experts(int64_t out, int64_t x, const Experts&, const Norm&);
  // Vectors of out = those of x, rotated.
  void turn(int64_t out, Columns to, int64_t x, Columns from, int64_t count, const Rotary&);
  // Vector i of out = part i times vector i of x.
  void multiply_each(int64_t out, Columns to, int64_t x, Columns from, Parts);
  void append(int64_t qkv, const Heads&, const Rotary&, const KV&);
  void attend(int64_t out, int64_t qkv, const Heads&, const KV&);

  // The states of all tokens, which the pass gives: a tape that begins behind the first layer.
  void input(int64_t out);
  // The embedding added last has rows [first, first + n) of the table: others give zeros, and what the
  // pass gives counts at the rank that has row 0.
  void share(int64_t first);
  // The experts added last write their outputs instead of adding them.
  void overwrite();
  // out = the sum of x over the ranks, or out += it.
  void reduce(int64_t out, int64_t x, Meeting*, bool add);

  // The product added last is number `product` of those that adapters know.
  void adapt(int64_t product);

  // Runs all operations (one at least) over a pass. `chosen` [count] are indices of tokens; `result`
  // [rows, width] receives the last buffer written. Returns its rows, -1 where memory ran out. Calls
  // from several threads take turns.
  // `adapted`: the tokens that adapters apply to, of all and of those chosen, or null.
  int64_t run(int threads, const Pass&, const int32_t* chosen, int64_t count, float* result,
              const Adapted* adapted = nullptr, const Adapted* adapted_chosen = nullptr);

  ~Tape();

 private:
  enum class Kind {
    // clang-format off
    EMBED, CHOOSE, PLACE, REORDER, NORM, ACTIVATE, LINEAR, PARTS, EXPERTS, TURN, APPEND, ATTEND, REDUCE
    // clang-format on
  };
  struct Step {
    Kind kind;
    int64_t out, x;
    Matrix w;
    Norm norm;
    Epilogue epilogue;
    const Experts* experts;
    const int32_t* order;
    FullNorm full;
    int64_t first, count;
    Columns from, to;
    Parts parts;
    Activation act;
    const float* table;
    Heads heads;
    Rotary rotary;
    KV kv;
    float scale;
    int64_t product = -1;
    int64_t shared = -1;  // the first row of a share of a table; -1: all rows are there
    bool add = true;
    Meeting* meeting = nullptr;
    bool handed = false;  // its product writes what the next one reads, which is prepared thereby
  };
  // Buffers lie one behind the other in the arena. One that is first written behind a choice has
  // room for the chosen tokens only.
  struct Buffer {
    int64_t width;
    bool chosen;
    int64_t place;  // floats of the arena before it, in the pass that runs
  };
  float* at(int64_t buffer) const { return arena_ + buffers_[static_cast<size_t>(buffer)].place; }
  int64_t width(int64_t buffer) const { return buffers_[static_cast<size_t>(buffer)].width; }
  bool reserve(int threads, const Pass&, int64_t chosen, const Adapted*);
  void step(Team&, const Step&, const Pass&, int64_t rows, const int32_t* chosen,
            const Adapted*) const;
  void linear(Team&, const Step&, int64_t rows, const Adapted*) const;
  bool read_later(int64_t buffer, size_t from) const;
  void hand_over(bool adapted);

  std::vector<Buffer> buffers_;
  std::vector<Step> steps_;
  std::mutex turn_;
  bool chooses_ = false;
  size_t arena_bytes_ = 0;
  float* arena_ = nullptr;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  void* handed_ = nullptr;  // scratch memory of products whose inputs are handed over
  size_t handed_bytes_ = 0;
  float* low_ = nullptr;  // of adapters
  size_t low_bytes_ = 0;
};

}  // namespace sgl
