// The end of a product: sums become outputs. Scales, bias, a gate's activation, the residual.

struct Output {
  const Matrix& w;
  const Layout& l;
  const Epilogue& e;
  const float* scales;  // W8A8: of the tokens
  float* y;
  int64_t ldy;
  // Of the next product, where its rows are written instead of y.
  uint8_t* rows = nullptr;
  int64_t stride = 0;
};

#if HAVE_QUADS && !HAVE_SIGNED
constexpr int32_t OFFSET = 128;  // dpbusd was given x + 128
#else
constexpr int32_t OFFSET = 0;
#endif

// Sums of vector v, scaled, with what adapters add and the bias of outputs first, ...,
// first + count.
static inline F finished(const Output& o, const uint8_t* head, int64_t row, const float* sums,
                         const float* more, int v, int64_t first, int64_t count) {
  F f = load(sums + v * LANES);
  const float* scales = reinterpret_cast<const float*>(head) + v * LANES;
  if (o.w.format == Format::W8A8) {
    I exact = (I)f - OFFSET * (I)load(scales + NB);
    f = __builtin_convertvector(exact, F) * (load(scales) * splat(o.scales[row]));
  } else if (o.w.format == Format::W8) {
    f = f * load(scales);
  }
  if (more) f += load(more + v * LANES);
  if (o.e.bias) {
    const float* bias = o.e.bias + first;
    f += count >= LANES ? load(bias) : load_part(bias, count);
  }
  return f;
}

// What adapters add to a row's columns of a block; null: nothing.
static const float* more_of(const Output& o, int64_t row, int64_t first, float* room) {
  const Adapted& use = *o.e.low->use;
  int64_t place = use.places[row];
  if (place < 0) return nullptr;
  int64_t count = o.l.outputs - first < o.l.width ? o.l.outputs - first : o.l.width;
  memset(room, 0, NB * sizeof(float));
  add_low(*o.e.low, place, first, count, room);
  if (o.w.paired) add_low(*o.e.low, place, o.l.outputs + first, count, room + o.l.width);
  return room;
}

// Rows [row, row + rows) of a block; sums: [rows][NB].
static void finish(const Output& o, int64_t block, int64_t row, int64_t rows, const float* sums) {
  const uint8_t* head = static_cast<const uint8_t*>(o.w.data) + block * o.l.block_bytes;
  int64_t first = block * o.l.width, vectors = o.l.width / LANES;
  alignas(64) float room[NB];
  for (int64_t r = 0; r < rows; r++, sums += NB) {
    float* y = o.y + (row + r) * o.ldy + first;
    const float* more = o.e.low ? more_of(o, row + r, first, room) : nullptr;
    for (int v = 0; v < vectors; v++) {
      int64_t column = first + v * LANES, count = o.l.outputs - column;
      if (count <= 0) break;
      F f = finished(o, head, row + r, sums, more, v, column, count);
      if (o.w.paired) {
        int up = v + NV / 2;
        f = gated(o.e.act, f,
                  finished(o, head, row + r, sums, more, up, o.l.outputs + column, count));
      }
      if (o.rows) {
        auto* next = reinterpret_cast<bf16*>(o.rows + (row + r) * o.stride) + column;
        store_rounded(next, f);
        continue;
      }
      float* to = y + v * LANES;
      if (o.e.add) f += count >= LANES ? load(to) : load_part(to, count);
      if (count >= LANES) store(to, f);
      else store_part(to, f, count);
    }
  }
}
