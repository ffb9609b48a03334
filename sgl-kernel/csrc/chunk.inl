// A chunk of keys and values of one head, brought from scattered slots into the form in which many
// queries meet them.
//
// The form is a matrix of 32-bit units. A unit is a float; or, where the machine multiplies pairs
// of bf16 (HAVE_DOT), two bf16 that are summed together:
//   keys   [units of a head][kChunk]: unit u of key i, so that lanes are keys
//   values [keys, or pairs of keys][padded dim]: lanes are dimensions
// int8 becomes float or bf16 exactly; its scales are applied to scores and weights instead. float8
// becomes either exactly, too.

enum class Form {
  FLOAT,  // F32 pools
  WIDE,   // BF16 pools as floats
  BYTE,   // I8 pools as floats
  EIGHT,  // F8 pools as floats
#if HAVE_DOT
  PAIR,        // BF16 pools as they are
  BYTE_PAIR,   // I8 pools as bf16
  EIGHT_PAIR,  // F8 pools as bf16
#endif
};

static constexpr bool paired(Form form) { return form > Form::EIGHT; }
static constexpr bool eight(Form form) {
#if HAVE_DOT
  if (form == Form::EIGHT_PAIR) return true;
#endif
  return form == Form::EIGHT;
}
static constexpr int64_t element_bytes(Form form) {
#if HAVE_DOT
  if (form == Form::PAIR) return 2;
#endif
  return form == Form::FLOAT ? 4 : form == Form::WIDE ? 2 : 1;
}
static inline Form form_of(Type type) {
#if HAVE_DOT
  if (type == Type::F8) return Form::EIGHT_PAIR;
  return type == Type::F32 ? Form::FLOAT : type == Type::BF16 ? Form::PAIR : Form::BYTE_PAIR;
#else
  if (type == Type::F8) return Form::EIGHT;
  return type == Type::F32 ? Form::FLOAT : type == Type::BF16 ? Form::WIDE : Form::BYTE;
#endif
}

typedef int8_t Bu __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int16_t S __attribute__((vector_size(2 * LANES)));
typedef uint32_t Uu __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// e4m3 in the low bytes as floats, without numbers that are denormal on the way.
static inline U widen_eight(U byte) {
  U digits = (byte & 0x7f) << 20;
  U normal = digits + (120u << 23);
  U small = (U)((F)(digits + (121u << 23)) - splat(0.015625f));  // 2^-6
  U value = (byte & 0x78) == 0 ? small : normal;
  value = (byte & 0x7f) == 0x7f ? U{} + 0x7fc00000 : value;
  return value | (byte & 0x80) << 24;
}

// Elements i.. of a head as floats, in their bits.
template <Form form>
static inline U element(const char* p, int64_t i) {
  if constexpr (form == Form::FLOAT) return (U)load(reinterpret_cast<const float*>(p) + i);
  else if constexpr (form == Form::WIDE) return (U)load(reinterpret_cast<const bf16*>(p) + i);
  else if constexpr (eight(form)) {
    S wide = __builtin_convertvector(*reinterpret_cast<const Bu*>(p + i), S);
    return widen_eight((U) __builtin_convertvector(wide, I) & 0xff);
  } else {
    // Two steps of twice the width: gcc 12 does one of four times the width element by element.
    S wide = __builtin_convertvector(*reinterpret_cast<const Bu*>(p + i), S);
    return (U) __builtin_convertvector(__builtin_convertvector(wide, I), F);
  }
}

#if HAVE_DOT
static inline U upper(U x) { return x & 0xffff0000; }
#endif

// Units i.. of a head.
template <Form form>
static inline U unit(const char* p, int64_t i) {
  if constexpr (!paired(form)) return element<form>(p, i);
#if HAVE_DOT
  else if constexpr (form == Form::PAIR) return *reinterpret_cast<const Uu*>(p + 4 * i);
  else {
    U both = __builtin_convertvector(*reinterpret_cast<const Hu*>(p + 2 * i), U);
    if constexpr (eight(form))
      return widen_eight(both & 0xff) >> 16 | upper(widen_eight(both >> 8));
    F even = __builtin_convertvector((I)(both << 24) >> 24, F);
    F odd = __builtin_convertvector((I)(both << 16) >> 24, F);
    return (U)even >> 16 | upper((U)odd);
  }
#endif
}

// Dimensions i.. of two keys as units, the first key's below.
#if HAVE_DOT
template <Form form>
static inline U couple(const char* p, const char* q, int64_t i) {
  if constexpr (form == Form::PAIR) {
    U a = __builtin_convertvector(*reinterpret_cast<const Hu*>(p + 2 * i), U);
    U b = __builtin_convertvector(*reinterpret_cast<const Hu*>(q + 2 * i), U);
    return a | b << 16;
  } else {
    return element<form>(p, i) >> 16 | upper(element<form>(q, i));
  }
}
#endif

// ---- transposing LANES vectors of units -------------------------------------------------------

template <int... n>
struct Places {};
template <int n, int... rest>
struct Count : Count<n - 1, n - 1, rest...> {};
// clang-format off
template <int... n> struct Count<0, n...> { using type = Places<n...>; };
// clang-format on

template <int step, int... n>
static inline void cross(U& a, U& b, Places<n...>) {
  U x = __builtin_shufflevector(a, b, ((n & step) ? LANES + n - step : n)...);
  U y = __builtin_shufflevector(a, b, ((n & step) ? LANES + n : n + step)...);
  a = x, b = y;
}
// Blocks of `step` units across the diagonal of blocks of twice as many change places; so do
// smaller ones.
template <int step>
static inline void swap_blocks(U* rows) {
  if constexpr (step > 0) {
    for (int i = 0; i < LANES; i++)
      if (!(i & step)) cross<step>(rows[i], rows[i + step], typename Count<LANES>::type());
    swap_blocks<step / 2>(rows);
  }
}

// Units i.. of LANES keys: unit i + j of all keys in rows[j].
template <Form form>
static inline void transpose(const char* const* from, int64_t i, U* rows) {
  for (int j = 0; j < LANES; j++) rows[j] = unit<form>(from[j], i);
  swap_blocks<LANES / 2>(rows);
}

#if HAVE_DOT
// bf16 of two vectors in turns: all of the first 2 LANES units of two keys.
typedef uint16_t Wide __attribute__((vector_size(4 * LANES), may_alias));
typedef uint16_t Wide_u __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
template <int... n>
static inline void zip(const char* p, const char* q, uint32_t* to, Places<n...>) {
  Wide a = *reinterpret_cast<const Wide_u*>(p), b = *reinterpret_cast<const Wide_u*>(q);
  Wide low = __builtin_shufflevector(a, b, ((n & 1) * 2 * LANES + n / 2)...);
  Wide high = __builtin_shufflevector(a, b, ((n & 1) * 2 * LANES + n / 2 + LANES)...);
  *reinterpret_cast<Uu*>(to) = (U)low;
  *reinterpret_cast<Uu*>(to + LANES) = (U)high;
}
#endif

// ---- packing -----------------------------------------------------------------------------------

// The slots of a chunk's keys and of those of the chunk after it, and how many there are of both.
struct Slots {
  int64_t now[kChunk], next[kChunk];
  int64_t count, more;
};

// Heads of fewer bytes than a vector are read from a copy, so that nothing behind them is.
static constexpr int64_t kShort = 4 * LANES;

// Asks for the slots of the next chunk while this one is packed, into the second cache: two pools'
// chunks are more than the first holds. Of a slot all heads are asked for together, since memory is
// fastest where it is read from end to end, and slot after slot in equal steps: a core has room for
// some twenty requests, and waits where there are more.
struct Ahead {
  const char* pool;           // the first head that is read, of slot 0
  int64_t slot_bytes, bytes;  // from a slot to the next; of a slot, to be read
  int64_t steps;              // of all heads
  int64_t asked = 0, progress = 0;

  void step(const Slots& at) {
    for (progress += at.more; progress >= steps; progress -= steps) {
      const char* slot = pool + at.next[asked++] * slot_bytes;
      for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(slot + b, 0, 2);
    }
  }
};

// Steps that packing a head takes, of a chunk whose keys are all there. Keys: vectors of units.
static int64_t key_steps(int64_t units) { return kChunk / LANES * ((units + LANES - 1) / LANES); }
static constexpr int64_t value_steps(Form form) { return paired(form) ? kChunk / 2 : kChunk; }

template <Form form>
static void pack_keys(const char* pool, const Slots& at, int64_t dim, int64_t slot_bytes,
                      Ahead& ahead, const char* zeros, U* to) {
  const int64_t units = paired(form) ? dim / 2 : dim, bytes = dim * element_bytes(form);
  const int64_t all = (at.count + LANES - 1) / LANES * LANES;
  alignas(64) char copies[LANES][kShort];
  uint32_t* out = reinterpret_cast<uint32_t*>(to);
  for (int64_t first = 0; first < all; first += LANES) {
    const char* from[LANES];
    for (int i = 0; i < LANES; i++) {
      int64_t key = first + i;
      from[i] = key < at.count ? pool + at.now[key] * slot_bytes : zeros;
    }
    if (units < LANES)
      for (int i = 0; i < LANES; i++) {
        memset(copies[i], 0, kShort);
        memcpy(copies[i], from[i], static_cast<size_t>(bytes));
        from[i] = copies[i];
      }
    for (int64_t u = 0; u < units; u += LANES) {
      ahead.step(at);
      // The last vector begins earlier rather than ends later: some units are written twice.
      int64_t at_unit = u + LANES <= units || units < LANES ? u : units - LANES;
      U rows[LANES];
      transpose<form>(from, at_unit, rows);
      int64_t n = units < LANES ? units : LANES;
      for (int64_t i = 0; i < n; i++)
        *reinterpret_cast<Uu*>(out + (at_unit + i) * kChunk + first) = rows[i];
    }
  }
}

template <Form form>
static void pack_values(const char* pool, const Slots& at, int64_t dim, int64_t padded,
                        int64_t slot_bytes, Ahead& ahead, const char* zeros, U* to) {
  const int64_t bytes = dim * element_bytes(form), step = paired(form) ? 2 : 1;
  alignas(64) char copies[2][kShort];
  uint32_t* out = reinterpret_cast<uint32_t*>(to);
  for (int64_t key = 0; key < at.count; key += step, out += padded) {
    ahead.step(at);
    const char* from[2];
    for (int64_t i = 0; i < step; i++) {
      from[i] = key + i < at.count ? pool + at.now[key + i] * slot_bytes : zeros;
      if (dim < LANES) {
        memset(copies[i], 0, kShort);
        memcpy(copies[i], from[i], static_cast<size_t>(bytes));
        from[i] = copies[i];
      }
    }
#if HAVE_DOT
    if (form == Form::PAIR && dim >= 2 * LANES) {
      for (int64_t d = 0; d < dim; d += 2 * LANES) {
        int64_t at_dim = d + 2 * LANES <= dim ? d : dim - 2 * LANES;
        zip(from[0] + 2 * at_dim, from[1] + 2 * at_dim, out + at_dim,
            typename Count<2 * LANES>::type());
      }
      continue;
    }
#endif
    for (int64_t d = 0; d < dim; d += LANES) {
      int64_t at_dim = d + LANES <= dim || dim < LANES ? d : dim - LANES;
      U v;
#if HAVE_DOT
      if constexpr (paired(form)) v = couple<form>(from[0], from[1], at_dim);
      else
#endif
        v = element<form>(from[0], at_dim);
      *reinterpret_cast<Uu*>(out + at_dim) = v;
    }
  }
}
