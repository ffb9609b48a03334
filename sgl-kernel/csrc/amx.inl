// AMX: eight tiles of 16 rows of 64 bytes, and products of them. An instruction multiplies 16 rows by
// 16 steps by 16 columns; a step is a pair of bf16 or four int8. Tiles 0-3 hold sums, 4-5 the left
// side (x, queries, weights of values), 6-7 the right one.
//
// A bf16 product sums the even and the odd inputs of 16 pairs by themselves, one after the other, by
// fused multiply-adds, and adds both to what was there; what is denormal counts as zero.

// While it lives, what is denormal counts as zero, as in products of tiles.
class Flushed {
 public:
  Flushed() {
    asm volatile("stmxcsr %0" : "=m"(before) : : "memory");
    uint32_t flushing = before | 0x8040;  // FTZ and DAZ
    asm volatile("ldmxcsr %0" : : "m"(flushing) : "memory");
  }
  ~Flushed() { asm volatile("ldmxcsr %0" : : "m"(before) : "memory"); }
  Flushed(const Flushed&) = delete;
  Flushed& operator=(const Flushed&) = delete;

 private:
  uint32_t before;
};

#if TILES_EMULATED
// What the instructions do, after their description in Intel's manual (325383, volume 2).
struct Tile {
  alignas(64) uint8_t row[16][64];
};
static thread_local Tile tile_file[8];
static thread_local int tile_rows;  // of the tiles of sums and of the left side

template <int T>
static int rows_in() {
  return T == 6 || T == 7 ? 16 : tile_rows;
}
static void tiles_begin(int64_t m) {
  if (m < 1) abort();  // ldtilecfg faults
  tile_rows = static_cast<int>(m < 16 ? m : 16);
}
static void tiles_end() {}
template <int T>
static void tile_zero() {
  memset(&tile_file[T], 0, sizeof(Tile));
}
template <int T>
static void tile_load(const void* from, int64_t stride) {
  for (int r = 0; r < rows_in<T>(); r++)
    memcpy(tile_file[T].row[r], static_cast<const uint8_t*>(from) + r * stride, 64);
}
template <int T>
static void tile_store(void* to, int64_t stride) {
  for (int r = 0; r < rows_in<T>(); r++)
    memcpy(static_cast<uint8_t*>(to) + r * stride, tile_file[T].row[r], 64);
}

struct TileBf16 {
  template <int C, int A, int B>
  static void dot() {
    Flushed flushed;
    for (int r = 0; r < tile_rows; r++) {
      const bf16* x = reinterpret_cast<const bf16*>(tile_file[A].row[r]);
      F even{}, odd{};
      for (int i = 0; i < 16; i++) {
        U pair = vector_at(tile_file[B].row[i], 0);
        even += splat(widen(x[2 * i])) * (F)(pair << 16);
        odd += splat(widen(x[2 * i + 1])) * (F)(pair & 0xffff0000);
      }
      float* sum = reinterpret_cast<float*>(tile_file[C].row[r]);
      store(sum, load(sum) + (even + odd));
    }
  }
};

struct TileInt8 {
  template <int C, int A, int B>
  static void dot() {
    for (int r = 0; r < tile_rows; r++) {
      const int8_t* x = reinterpret_cast<const int8_t*>(tile_file[A].row[r]);
      int32_t* sum = reinterpret_cast<int32_t*>(tile_file[C].row[r]);
      for (int i = 0; i < 16; i++) {
        const int8_t* w = reinterpret_cast<const int8_t*>(tile_file[B].row[i]);
        for (int j = 0; j < 64; j++) sum[j / 4] += x[4 * i + j % 4] * w[j];
      }
    }
  }
};
#else
// Assembly, not intrinsics: _tile_loadconfig of gcc 12 lets
// the compiler drop all but eight bytes of the configuration.
struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "as ldtilecfg reads it");

static void tiles_begin(int64_t m) {
  alignas(64) TileConfig config = {};
  config.palette = 1;
  for (int t = 0; t < 8; t++) {
    config.row_bytes[t] = 64;
    config.rows[t] = t < 6 && m < 16 ? static_cast<uint8_t>(m) : 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}
// Without it the operating system would save eight KiB at every switch of threads.
static void tiles_end() { asm volatile("tilerelease"); }
template <int T>
INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
INLINE void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
INLINE void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}
struct TileBf16 {
  template <int C, int A, int B>
  INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};
struct TileInt8 {
  template <int C, int A, int B>
  INLINE void dot() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};
#endif

// Tiles of as many rows as were last asked for; configured only where that changes.
class TileRows {
 public:
  TileRows() = default;
  ~TileRows() {
    if (rows) tiles_end();
  }
  TileRows(const TileRows&) = delete;
  TileRows& operator=(const TileRows&) = delete;
  void are(int n) {
    if (n != rows) tiles_begin(rows = n);
  }

 private:
  int rows = 0;
};
