// Where what lies in a packed matrix and in the scratch memory of a product.
//
// A packed matrix is cut into blocks of NB columns (outputs; rows of W). A block is a run of memory
// that is read from its first byte to its last, in steps: the weights of all its columns for a few
// inputs, so that one step of x (one dword, or two floats) meets NV vectors of weights.
//
//   block = groups x (head, steps)           one group, except for W4, W4Z, W4M, W8Z and W8M
//   step    F32   1 input:  float [NB]
//           BF16  2 inputs: bf16 [NB][2]
//           W8A8  4 inputs: int8 [NB][4] (QUADS), or as W8
//           W8    2 inputs: int8 [NB][2]
//           W4    2 inputs: dword j holds columns j, LANES + j, ...: their even inputs in nibbles
//                 0-3, their odd inputs in nibbles 4-7, each weight + 8
//   head    W8    float [NB]: scales         W4  bf16 [NB]: scales of this group
//           W8A8  float [NB]: scales, int32 [NB]: sums of the column's weights
//           Z     float16 [NB]: scales of this group, int8 [NB]: lows in scales
//           M     float [NB]: scales of this group, float [NB]: lows
//
// Columns that do not exist and inputs behind k are zeros. In a paired matrix the first half of a
// block's columns are gates and the second half what they gate.

constexpr int NV = 4;           // vectors side by side in a block
constexpr int NB = NV * LANES;  // columns of a block

#if HAVE_PAIRS
constexpr bool PAIRS = true;  // bf16 pairs: for dpbf16ps, tdpbf16ps and bfdot
#else
constexpr bool PAIRS = false;
#endif
#if HAVE_QUADS
constexpr bool QUADS = true;  // W8A8 as int8 quadruples: for dpbusd, tdpbssd and sdot
#else
constexpr bool QUADS = false;
#endif

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Formats by what they have in common.
static inline bool has_zeros(Format f) { return f == Format::W4Z || f == Format::W8Z; }
static inline bool affine(Format f) { return has_zeros(f) || f == Format::W4M || f == Format::W8M; }
static inline bool nibbles(Format f) {
  return f == Format::W4 || f == Format::W4Z || f == Format::W4M;
}

struct Layout {
  Format format;
  int64_t n, k;
  bool paired;
  int64_t outputs, width;  // of the product; of a block
  int64_t blocks;
  int64_t inputs;  // in a step
  int64_t steps;   // of a block; whole tiles (16 steps) and whole groups
  int64_t step_bytes, head, group_steps, group_bytes, block_bytes;

  // Step `s` of a block, s at a group's start or anywhere for those of one group.
  const uint8_t* at(const void* data, int64_t block, int64_t s) const {
    return static_cast<const uint8_t*>(data) + block * block_bytes + s / group_steps * group_bytes +
           head + s % group_steps * step_bytes;
  }

  // The row of W that is column j of a block; -1: none.
  int64_t source(int64_t block, int64_t j) const {
    int64_t half = paired && j >= width;
    int64_t row = block * width + j - half * width;
    return row < outputs ? row + half * outputs : -1;
  }
};

static Layout layout(Format format, int64_t n, int64_t k, int64_t group, bool paired) {
  Layout l;
  l.format = format, l.n = n, l.k = k, l.paired = paired;
  l.outputs = paired ? n / 2 : n;
  l.width = paired ? NB / 2 : NB;
  l.blocks = ceil_div(l.outputs, l.width);
  l.inputs = format == Format::F32 ? 1 : format == Format::W8A8 && QUADS ? 4 : 2;
  bool grouped = format == Format::W4 || affine(format);
  int64_t multiple = format == Format::F32 ? 1 : grouped ? group : 16 * l.inputs;
  l.steps = round_up(k, multiple) / l.inputs;
  l.step_bytes = nibbles(format) ? NB : format == Format::W8 || grouped ? 2 * NB : 4 * NB;
  if (format == Format::W8A8) l.step_bytes = l.inputs * NB;
  l.head = format == Format::W8A8 ? 8 * NB : format == Format::W8 ? 4 * NB : 0;
  l.group_steps = l.steps > 0 ? l.steps : 1;
  if (grouped) l.head = (format == Format::W4 ? 2 : has_zeros(format) ? 3 : 8) * NB;
  if (grouped) l.group_steps = group / 2;
  l.group_bytes = l.head + l.group_steps * l.step_bytes;
  l.block_bytes = ceil_div(l.steps, l.group_steps) * l.group_bytes;
  if (l.steps == 0) l.block_bytes = l.head;
  return l;
}
static Layout layout(const Matrix& w) { return layout(w.format, w.n, w.k, w.group, w.paired); }

static size_t packed_bytes(Format format, int64_t n, int64_t k, int64_t group) {
  Layout l = layout(format, n, k, group, false);  // the same for a paired one, n being even
  return static_cast<size_t>(l.blocks * l.block_bytes);
}

// Scratch: W8A8's scales of the m tokens, then m rows of x, padded with zeros to whole steps and, for
// affine formats, followed by the sums of their groups, floats. With products of pairs and
// quadruples in hardware an input is as narrow as its format says; otherwise it is a float that
// holds the same value.
struct Inputs {
  int64_t rows_at;  // bytes before the first row
  int64_t bytes;    // of an input
  int64_t padded;   // inputs with the padding
  int64_t sums_at;  // bytes from a row's start to its sums
  int64_t stride;   // bytes from row to row: odd in cache lines, so that rows do not share sets
};

static Inputs inputs_of(const Layout& l, int64_t m) {
  Inputs in;
  in.padded = l.steps * l.inputs;
  in.bytes = 4;
  if (l.format == Format::W8A8) in.bytes = QUADS ? 1 : 4;
  else if (l.format != Format::F32) in.bytes = PAIRS ? 2 : 4;
  in.rows_at = l.format == Format::W8A8 ? round_up(m * 4, 64) : 0;
  in.sums_at = in.padded * in.bytes;
  int64_t sums = affine(l.format) ? ceil_div(l.steps, l.group_steps) * 4 : 0;
  in.stride = round_up(in.sums_at + sums, 128) + 64;
  return in;
}

static size_t scratch_bytes(const Matrix& w, int64_t m) {
  Inputs in = inputs_of(layout(w), m);
  return static_cast<size_t>(in.rows_at + m * in.stride);
}
