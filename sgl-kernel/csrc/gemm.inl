// Matrix products y = x W^T: packing, and the product in two halves (kernels.h). In parts:
//
//   gemm_layout   where what lies in a packed matrix
//   gemm_pack     from plain weights to packed ones, quantised, and back
//   gemm_prepare  x: normed, converted
//   gemm_steps    the loops, in vectors of any width; products_x86, products_arm: by instruction
//   gemm_tiles    the loops, in AMX tiles (amx)
//   gemm_finish   bias, activation, residual
//
// and here who computes what. The unit of work is some neighbouring blocks of columns for a group
// of rows. Of a block a member takes a chunk of the weights at a time through all rows of the
// group, in tiles of rows, so that weights come from memory once for a group, and from a near cache
// for all tiles but the first. Sums wait on the stack.

#include "activation.inl"
#include "norm.inl"
#include "gemm_layout.inl"
#include "gemm_pack.inl"
#include "gemm_prepare.inl"
#include "gemm_steps.inl"
#include "lora.inl"
#include "gemm_finish.inl"

// The rows [begin, end) of a task, of `all`, and what they read.
struct Rows {
  int64_t begin, end, all;
  const uint8_t* x;
  int64_t ldx, sums_at;  // of the sums of a row's groups
};

constexpr int64_t GROUP_ROWS = 96;  // the most; a multiple of TALL
#if HAVE_TILES
constexpr int64_t TALL = 32;
#include "amx.inl"
#include "gemm_tiles.inl"
#else
constexpr int64_t TALL = MR;
#endif

constexpr int64_t CHUNK = 512;            // steps, where several tiles of rows share weights
constexpr int64_t WIDE = 64;              // steps that are expanded at a time: 16 or 32 KiB
constexpr int64_t COUNTED = 512;          // steps of int8 pairs whose sum is exact in a float
constexpr int64_t RUN_BYTES = 256 << 10;  // of neighbouring blocks that one member takes at once

// What tile `t` of `tiles` brings in of the next chunk, `lines` cache lines from `next` on.
static inline Fetch share(const uint8_t* next, int64_t lines, int64_t t, int64_t tiles,
                          int64_t steps) {
  int64_t each = ceil_div(lines, tiles * steps), from = t * steps * each;
  return {next + from * 64, from < lines ? each : 0};
}

template <class S, End END>
static void block_of_rows(const Output& o, const Rows& rows, int64_t block) {
  using Wide = typename S::Wide;
  alignas(64) float sums[GROUP_ROWS * NB];
  constexpr bool NARROW = !std::is_same<S, Wide>::value;
  alignas(64) uint8_t wide[NARROW ? WIDE * S::PARTS * Wide::BYTES : 64];
  int64_t count = rows.end - rows.begin, tiles = ceil_div(count, MR);
  int64_t chunk = tiles == 1 ? o.l.steps : NARROW ? WIDE : CHUNK;
  if (END == End::SCALE || END == End::AFFINE) chunk = o.l.group_steps;
  Scaling scaling;
  if (END == End::AFFINE) memset(sums, 0, static_cast<size_t>(count * NB) * 4);
  if (END == End::COUNT && chunk > COUNTED) chunk = COUNTED;
  for (int64_t step = 0; step < o.l.steps; step += chunk) {
    int64_t steps = o.l.steps - step < chunk ? o.l.steps - step : chunk;
    const uint8_t* w = o.l.at(o.w.data, block, step);
    const uint8_t* next = w + steps * S::BYTES;
    const void* scales = w - o.l.head;
    int64_t total_at = rows.sums_at + step / o.l.group_steps * 4;
    if (END == End::AFFINE) read_scaling(o.l, w - o.l.head, scaling), scales = scaling.scale;
    bool fresh = step == 0;
    if (NARROW && tiles > 1) expand<S>(w, steps, wide);
    for (int64_t t = 0; t < tiles; t++) {
      int64_t from = count * t / tiles, to = count * (t + 1) / tiles;
      const uint8_t* row = rows.x + (rows.begin + from) * rows.ldx;
      const uint8_t* x = row + step * S::XBYTES;
      float* at = sums + from * NB;
      if (tiles == 1) {
        tile_of<S, END, true>(to - from, w, x, rows.ldx, steps, {}, scales, at, fresh);
        if (END == End::AFFINE) add_lows(to - from, scaling.low, row + total_at, rows.ldx, at);
        continue;
      }
      int64_t passes = steps * (NARROW ? S::PARTS : 1);
      Fetch fetch = share(next, steps * S::BYTES / 64, t, tiles, passes);
      const uint8_t* from_w = NARROW ? wide : w;
      tile_of<Wide, END, false>(to - from, from_w, x, rows.ldx, passes, fetch, scales, at, fresh);
      if (END == End::AFFINE) add_lows(to - from, scaling.low, row + total_at, rows.ldx, at);
    }
  }
  if (o.l.steps == 0) memset(sums, 0, sizeof sums);
  finish(o, block, rows.begin, count, sums);
}

static void block_of_rows(const Output& o, const Rows& rows, int64_t block) {
  switch (o.w.format) {
    case Format::F32: return block_of_rows<StepF32, End::CARRY>(o, rows, block);
#if HAVE_TILES
    default: return block_in_tiles(o, rows, block);
#else
    case Format::BF16: return block_of_rows<StepBf16, End::CARRY>(o, rows, block);
    case Format::W8: return block_of_rows<StepW8, End::CARRY>(o, rows, block);
    case Format::W4: return block_of_rows<StepW4, End::SCALE>(o, rows, block);
    case Format::W4Z:
    case Format::W4M: return block_of_rows<StepW4, End::AFFINE>(o, rows, block);
    case Format::W8Z:
    case Format::W8M: return block_of_rows<StepW8, End::AFFINE>(o, rows, block);
    case Format::W8A8:
      return block_of_rows<StepW8A8, QUADS ? End::CARRY : End::COUNT>(o, rows, block);
#endif
  }
}

// How a product of m rows is cut into tasks for `size` members.
struct Cut {
  Layout l;
  Inputs in;
  int64_t m, groups, height, span, tasks;
};

static Cut cut(const Matrix& w, int64_t m, int size) {
  Cut c;
  c.l = layout(w), c.in = inputs_of(c.l, m), c.m = m, c.tasks = 0;
  if (m == 0) return c;
  c.groups = ceil_div(m, GROUP_ROWS);
  c.height = round_up(ceil_div(m, c.groups), TALL);
  // Neighbouring blocks in one run of memory, but some runs for each member.
  int64_t most = c.l.blocks / (8 * size);
  c.span = RUN_BYTES / (c.l.block_bytes + 1) + 1;
  if (c.span > most) c.span = most > 0 ? most : 1;
  c.tasks = ceil_div(c.l.blocks, c.span) * c.groups;
  return c;
}

static void multiply_task(const Cut& c, const Output& o, const void* scratch, int64_t task) {
  const uint8_t* x = static_cast<const uint8_t*>(scratch) + c.in.rows_at;
  int64_t block = task / c.groups * c.span;
  int64_t end = block + c.span < c.l.blocks ? block + c.span : c.l.blocks;
  int64_t first = task % c.groups * c.height;
  int64_t last = first + c.height < c.m ? first + c.height : c.m;
  for (; block < end; block++)
    block_of_rows(o, {first, last, c.m, x, c.in.stride, c.in.sums_at}, block);
}

// Rows in whole vectors of bf16, without padding, scales and sums.
static bool takes(const Matrix& w) {
  bool plain = w.format == Format::BF16 || w.format == Format::W8 || w.format == Format::W4;
  return PAIRS && plain && inputs_of(layout(w), 1).padded == w.k && w.k % LANES == 0;
}

static void multiply(Team& team, const Matrix& w, const void* scratch, int64_t m, const Epilogue& e,
                     float* y, int64_t ldy) {
  if (m == 0) return;  // tiles of no rows cannot be configured
  Cut c = cut(w, m, team.size);
  Output o{w, c.l, e, static_cast<const float*>(scratch), y, ldy};
  if (e.next) {
    Inputs in = inputs_of(layout(*e.next), m);
    o.rows = static_cast<uint8_t*>(e.rows) + in.rows_at, o.stride = in.stride;
  }
#if HAVE_TILES
  tiles_begin(m);
#endif
  team.each(c.tasks, [&](int64_t task) { multiply_task(c, o, scratch, task); });
#if HAVE_TILES
  tiles_end();
#endif
}
