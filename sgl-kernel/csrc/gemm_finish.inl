// The end of a product: sums become outputs. Scales, bias, a gate's activation, the residual.

struct Output {
  const Matrix& w;
  const Layout& l;
  const Epilogue& e;
  const float* scales;  // W8A8: of the tokens
  float* y;
  int64_t ldy;
};

#if HAVE_DOT && !HAVE_TILES
constexpr int32_t OFFSET = 128;  // dpbusd was given x + 128
#else
constexpr int32_t OFFSET = 0;
#endif

// Sums of vector v, scaled, with the bias of outputs first, ..., first + count.
static inline F finished(const Output& o, const uint8_t* head, int64_t row, const float* sums,
                         int v, int64_t first, int64_t count) {
  F f = load(sums + v * LANES);
  const float* scales = reinterpret_cast<const float*>(head) + v * LANES;
  if (o.w.format == Format::W8A8) {
    I exact = (I)f - OFFSET * (I)load(scales + NB);
    f = __builtin_convertvector(exact, F) * (load(scales) * splat(o.scales[row]));
  } else if (o.w.format == Format::W8) {
    f = f * load(scales);
  }
  if (o.e.bias) {
    const float* bias = o.e.bias + first;
    f += count >= LANES ? load(bias) : load_part(bias, count);
  }
  return f;
}

// Rows [row, row + rows) of a block; sums: [rows][NB].
static void finish(const Output& o, int64_t block, int64_t row, int64_t rows, const float* sums) {
  const uint8_t* head = static_cast<const uint8_t*>(o.w.data) + block * o.l.block_bytes;
  int64_t first = block * o.l.width, vectors = o.l.width / LANES;
  for (int64_t r = 0; r < rows; r++, sums += NB) {
    float* y = o.y + (row + r) * o.ldy + first;
    for (int v = 0; v < vectors; v++) {
      int64_t column = first + v * LANES, count = o.l.outputs - column;
      if (count <= 0) break;
      F f = finished(o, head, row + r, sums, v, column, count);
      if (o.w.paired) {
        int up = v + NV / 2;
        F gated = finished(o, head, row + r, sums, up, o.l.outputs + column, count);
        f = activate(o.e.act, f) * gated;
      }
      float* to = y + v * LANES;
      if (o.e.add) f += count >= LANES ? load(to) : load_part(to, count);
      if (count >= LANES) store(to, f);
      else store_part(to, f, count);
    }
  }
}
