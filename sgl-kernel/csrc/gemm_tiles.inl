// Products in AMX tiles: 16 rows of x times 16 steps times 16 columns an instruction.
//
// The packed layout is the one of gemm_steps.inl: 16 steps of a block are NV tiles side by side, a
// row of such a tile being one vector of a step. x is read as it lies, too. So tiles need no
// packing of their own; what is narrower than bf16 is expanded to it, a chunk at a time.
//
// Every product in this table is done in tiles, also that of a single row (tiles of one row then):
// the sums of tdpbf16ps are not those of dpbf16ps to the last bit.

constexpr int64_t TILE_CHUNK = 512;  // steps of weights that stay in the second cache: 128 KiB
constexpr int64_t TILE_WIDE = 256;   // steps that are expanded at a time: 64 KiB
constexpr int64_t STEP = 4 * NB;     // bytes
constexpr int64_t SUM_ROW = 4 * NB;

template <int T>
INLINE void sums_in(const float* sums, bool fresh) {
  if (fresh) tile_zero<T>();
  else tile_load<T>(sums, SUM_ROW);
}
INLINE void prefetch_tile(const uint8_t* w, int64_t ahead, int64_t bytes) {
  if (!ahead) return;
  for (int64_t step = 0; step < 16; step++)
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(w + ahead + step * STEP + at);
}

// One tile of rows by the NB columns of a block. sums: [rows][NB].
template <class T>
static void tile_by_four(const uint8_t* w, const uint8_t* x, int64_t ldx, int64_t steps,
                         int64_t ahead, float* sums, bool fresh) {
  sums_in<0>(sums, fresh), sums_in<1>(sums + 16, fresh);
  sums_in<2>(sums + 32, fresh), sums_in<3>(sums + 48, fresh);
  for (int64_t s = 0; s < steps; s += 16, w += 16 * STEP, x += 64) {
    prefetch_tile(w, ahead, STEP);
    tile_load<4>(x, ldx);
    tile_load<6>(w, STEP);
    T::template dot<0, 4, 6>();
    tile_load<7>(w + 64, STEP);
    T::template dot<1, 4, 7>();
    tile_load<6>(w + 128, STEP);
    T::template dot<2, 4, 6>();
    tile_load<7>(w + 192, STEP);
    T::template dot<3, 4, 7>();
  }
  tile_store<0>(sums, SUM_ROW), tile_store<1>(sums + 16, SUM_ROW);
  tile_store<2>(sums + 32, SUM_ROW), tile_store<3>(sums + 48, SUM_ROW);
}

// Two tiles of rows by half a block, so that what is loaded is used twice.
template <class T>
static void two_by_two(const uint8_t* w, const uint8_t* x, const uint8_t* x2, int64_t ldx,
                       int64_t steps, int64_t ahead, float* sums, float* sums2, bool fresh) {
  sums_in<0>(sums, fresh), sums_in<1>(sums + 16, fresh);
  sums_in<2>(sums2, fresh), sums_in<3>(sums2 + 16, fresh);
  for (int64_t s = 0; s < steps; s += 16, w += 16 * STEP, x += 64, x2 += 64) {
    prefetch_tile(w, ahead, STEP / 2);
    tile_load<4>(x, ldx);
    tile_load<6>(w, STEP);
    T::template dot<0, 4, 6>();
    tile_load<7>(w + 64, STEP);
    T::template dot<1, 4, 7>();
    tile_load<5>(x2, ldx);
    T::template dot<2, 5, 6>();
    T::template dot<3, 5, 7>();
  }
  tile_store<0>(sums, SUM_ROW), tile_store<1>(sums + 16, SUM_ROW);
  tile_store<2>(sums2, SUM_ROW), tile_store<3>(sums2 + 16, SUM_ROW);
}

// W4 with its scales multiplied in, which is exact (gemm_pack.inl), to bf16.
static void expand_w4(const Layout& l, const uint8_t* w, int64_t steps, uint8_t* wide) {
  float* to = reinterpret_cast<float*>(wide);
  for (int64_t s = 0; s < steps; s += l.group_steps, w += l.head) {
    const bf16* scales = reinterpret_cast<const bf16*>(w - l.head);
    F scale[NV];
    for (int v = 0; v < NV; v++) scale[v] = load(scales + v * LANES);
    for (int64_t i = 0; i < l.group_steps; i++, w += StepW4::BYTES)
      for (int v = 0; v < NV; v++, to += LANES) {
        U pair = (U)StepW4::weight(w, v, 0);
        U even = (U)((F)(pair << 16) * scale[v]);
        U odd = (U)((F)(pair & 0xffff0000) * scale[v]);
        store(to, (F)(even >> 16 | (odd & 0xffff0000)));
      }
  }
}

// The rows of a group in tiles. With fewer than 16 rows in all the tiles have as many; otherwise
// the last tile ends at the last row, and the rows that it shares with the one before come out
// twice, of which one is dropped.
template <class T, Format FORMAT>
static void block_in_tiles(const Output& o, const Rows& rows, int64_t block) {
  alignas(64) float sums[GROUP_ROWS * NB];
  constexpr bool NARROW = FORMAT == Format::W8 || FORMAT == Format::W4;
  alignas(64) uint8_t wide[NARROW ? TILE_WIDE * STEP : 64];
  int64_t tiles = ceil_div(rows.end - rows.begin, 16);
  int64_t chunk = NARROW ? TILE_WIDE : tiles == 1 ? o.l.steps : TILE_CHUNK;
  auto start = [&](int64_t t) {
    int64_t row = rows.begin + 16 * t, last = rows.all < 16 ? 0 : rows.all - 16;
    return row < last ? row : last;
  };
  for (int64_t step = 0; step < o.l.steps; step += chunk) {
    int64_t steps = o.l.steps - step < chunk ? o.l.steps - step : chunk;
    const uint8_t* w = o.l.at(o.w.data, block, step);
    int64_t ahead = NARROW ? 0 : 4 * 16 * STEP;
    if (FORMAT == Format::W8) expand<StepW8>(w, steps, wide);
    if (FORMAT == Format::W4) expand_w4(o.l, w, steps, wide);
    if (NARROW) w = wide;
    for (int64_t t = 0; t < tiles; t += 2, ahead = 0) {
      const uint8_t* x = rows.x + start(t) * rows.ldx + step * 4;
      float* at = sums + 16 * t * NB;
      if (t + 1 == tiles) {
        tile_by_four<T>(w, x, rows.ldx, steps, ahead, at, step == 0);
        continue;
      }
      const uint8_t* x2 = rows.x + start(t + 1) * rows.ldx + step * 4;
      float* at2 = at + 16 * NB;
      for (int64_t half = 0; half < 2; half++)
        two_by_two<T>(w + half * STEP / 2, x, x2, rows.ldx, steps, ahead, at + half * NB / 2,
                      at2 + half * NB / 2, step == 0);
    }
  }
  if (o.l.steps == 0) memset(sums, 0, sizeof sums);
  for (int64_t t = 0; t < tiles; t++) {
    int64_t row = rows.begin + 16 * t, last = row + 16 < rows.end ? row + 16 : rows.end;
    finish(o, block, row, last - row, sums + (16 * t + row - start(t)) * NB);
  }
}

// Affine formats: the sums of a group come out of the tiles before they are scaled. Without
// neighbouring tiles of rows: what is expanded is small enough to be read once for each.
template <class S>
static void block_by_groups(const Output& o, const Rows& rows, int64_t block) {
  alignas(64) float sums[GROUP_ROWS * NB], part[16 * NB];
  alignas(64) uint8_t wide[64 * STEP];
  Scaling scaling;
  memset(sums, 0, sizeof sums);
  int64_t tiles = ceil_div(rows.end - rows.begin, 16), height = rows.all < 16 ? rows.all : 16;
  for (int64_t step = 0; step < o.l.steps; step += o.l.group_steps) {
    const uint8_t* w = o.l.at(o.w.data, block, step);
    read_scaling(o.l, w - o.l.head, scaling);
    expand<S>(w, o.l.group_steps, wide);
    for (int64_t t = 0; t < tiles; t++) {
      // As in block_in_tiles: the last tile ends at the last row.
      int64_t row = rows.begin + 16 * t, first = row < rows.all - height ? row : rows.all - height;
      const uint8_t* x = rows.x + first * rows.ldx;
      tile_by_four<TileBf16>(wide, x + step * 4, rows.ldx, o.l.group_steps, 0, part, true);
      x += rows.sums_at + step / o.l.group_steps * 4;
      int64_t end = row + 16 < rows.end ? row + 16 : rows.end;
      for (int64_t r = row - first; r < end - first; r++)
        for (int64_t j = 0; j < NB; j += LANES) {
          float* at = sums + (16 * t + r - (row - first)) * NB + j;
          store(at, load(at) + load(scaling.scale + j) * load(part + r * NB + j));
        }
      int64_t skip = row - first;
      add_lows(end - row, scaling.low, x + skip * rows.ldx, rows.ldx, sums + 16 * t * NB);
    }
  }
  finish(o, block, rows.begin, rows.end - rows.begin, sums);
}

static void block_in_tiles(const Output& o, const Rows& rows, int64_t block) {
  switch (o.w.format) {
    case Format::W4Z:
    case Format::W4M: return block_by_groups<StepW4>(o, rows, block);
    case Format::W8Z:
    case Format::W8M: return block_by_groups<StepW8>(o, rows, block);
    case Format::W8A8: return block_in_tiles<TileInt8, Format::W8A8>(o, rows, block);
    case Format::W8: return block_in_tiles<TileBf16, Format::W8>(o, rows, block);
    case Format::W4: return block_in_tiles<TileBf16, Format::W4>(o, rows, block);
    default: return block_in_tiles<TileBf16, Format::BF16>(o, rows, block);
  }
}
