// What becomes of q, k and v before attention: a norm for each head, rotation by position
// (RoFormer, Su et al. 2021), and k and v to the pool. Each head of a token is done by itself.

// Dimensions [0, n) of x rotate with those of y: vectors first, what is left one by one.
static void rotate_pairs(float* x, float* y, const float* cos, const float* sin, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    F a = load(x + i), b = load(y + i), c = load(cos + i), s = load(sin + i);
    store(x + i, a * c - b * s);
    store(y + i, a * s + b * c);
  }
  for (; i < n; i++) {
    float a = x[i], b = y[i];
    x[i] = a * cos[i] - b * sin[i];
    y[i] = a * sin[i] + b * cos[i];
  }
}

// The first `turned` dimensions of a token's vector, each section by a position of its own.
static void rotate(const Pass& pass, const Rotary& rotary, int64_t token, float* x) {
  const int64_t half = rotary.turned / 2;
  int64_t begin = 0;
  for (int64_t axis = 0; axis < pass.axes; axis++) {
    const int64_t count = pass.axes == 1 ? half : rotary.sections[axis];
    const int64_t at = pass.positions[axis * pass.tokens + token] * half + begin;
    rotate_pairs(x + begin, x + half + begin, rotary.cos + at, rotary.sin + at, count);
    begin += count;
  }
}

static void turn(Team& team, const Pass& pass, const Rotary& rotary, int64_t count, const float* x,
                 int64_t ldx, Columns from, float* y, int64_t ldy, Columns to) {
  Range mine = team.part(pass.tokens * count);
  for (int64_t unit = mine.begin; unit < mine.end; unit++) {
    const int64_t token = unit / count, i = unit % count;
    float* out = y + token * ldy + to.first + i * to.apart;
    memcpy(out, x + token * ldx + from.first + i * from.apart,
           static_cast<size_t>(rotary.turned) * 4);
    rotate(pass, rotary, token, out);
  }
}

constexpr float kNothing = 1e-30f;  // heads with no value above it count as zeros in I8

// To e4m3, to nearest, ties to even; what is larger than 448, the largest, becomes that.
static inline uint8_t narrow_eight(float x) {
  float a = std::fabs(x);
  uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (!(a <= 3.4028235e38f)) return sign | 0x7f;
  if (a >= 448.f) return sign | 0x7e;
  if (a < 0.015625f) {  // 2^-6: eighths of it
    float t = a * 512.f;
    int whole = static_cast<int>(t);
    float rest = t - static_cast<float>(whole);
    whole += rest > .5f || (rest == .5f && whole % 2);
    return static_cast<uint8_t>(sign | whole);
  }
  uint32_t bits;
  memcpy(&bits, &a, 4);
  bits += 0x7ffff + (bits >> 20 & 1);
  return static_cast<uint8_t>(sign | ((bits >> 20) - (120 << 3)));
}

// One head's vector into a pool. I8: the largest magnitude becomes 127, and every element is at
// most half a step, largest / 254, from what it was.
static void put(Type type, void* pool, float* scales, int64_t index, const float* x, int64_t dim) {
  if (type == Type::F32) {
    memcpy(static_cast<float*>(pool) + index * dim, x, static_cast<size_t>(dim) * 4);
  } else if (type == Type::BF16) {
    bf16* to = static_cast<bf16*>(pool) + index * dim;
    int64_t i = 0;
    for (; i + LANES <= dim; i += LANES) store(to + i, load(x + i));
    for (; i < dim; i++) to[i] = narrow(x[i]);
  } else if (type == Type::F8) {
    uint8_t* to = static_cast<uint8_t*>(pool) + index * dim;
    for (int64_t i = 0; i < dim; i++) to[i] = narrow_eight(x[i]);
  } else {
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < dim; i++) {
      float a = std::fabs(x[i]);
      largest = a > largest ? a : largest;
      finite &= a <= 3.4028235e38f;
    }
    // A scale of NaN keeps what is not finite from being taken for a number.
    scales[index] = finite ? largest / 127.f : __builtin_nanf("");
    float inverse = finite && largest > kNothing ? 127.f / largest : 0.f;
    int8_t* to = static_cast<int8_t*>(pool) + index * dim;
    for (int64_t i = 0; i < dim; i++) {
      float v = finite ? x[i] * inverse : 0.f;
      v = v > 127.f ? 127.f : v < -127.f ? -127.f : v;
      to[i] = static_cast<int8_t>(static_cast<int32_t>(v + (v < 0 ? -.5f : .5f)));
    }
  }
}

// What is not finite must reach the queries that see it and no others. A key does so by itself, since
// scores that are not seen are replaced; a value does not, as 0 * NaN is NaN for whoever meets its
// chunk. So its key tells of it, as NaN, and it becomes zeros; where they are shared, what the key
// has beside the value does. (I8: its scale does, see put.)
static void tell(Type type, float* key, int64_t key_dim, float* value, int64_t dim) {
  const float largest = type == Type::BF16 ? 3.3895314e38f : 3.4028235e38f;
  int32_t bad = 0;
  for (int64_t i = 0; i < dim; i++) bad |= !(std::fabs(value[i]) <= largest);
  if (!bad) return;
  for (int64_t i = 0; i < key_dim; i++) key[i] = __builtin_nanf("");
  for (int64_t i = 0; i < dim; i++) value[i] = 0;
}

// The row that a token belongs to: the last one that begins at or before it.
static int64_t row_of(const Pass& pass, int64_t token) {
  int64_t low = 0, high = pass.rows;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    (pass.firsts[middle] <= token ? low : high) = middle;
  }
  return low;
}

static inline int64_t slot_of(const Pass& pass, int64_t row, int64_t position) {
  const int32_t* table = pass.pages + pass.tables[row];
  if (pass.page_size == 1) return table[position];
  return table[position / pass.page_size] * pass.page_size + position % pass.page_size;
}

static void append(Team& team, const Pass& pass, const Heads& heads, const Rotary& rotary,
                   float* qkv, int64_t ld, const KV& kv) {
  int64_t dim = heads.dim, units = heads.q + heads.kv;
  // A unit is a query head, or a key head with its values.
  Range mine = team.part(pass.tokens * units);
  int64_t token = -1, slot = 0;
  for (int64_t unit = mine.begin; unit < mine.end; unit++) {
    int64_t head = unit % units;
    if (unit / units != token) {
      token = unit / units;
      // The slot is found by the token's index in its row: positions only rotate.
      const int64_t row = row_of(pass, token);
      slot = slot_of(pass, row, pass.starts[row] + token - pass.firsts[row]);
    }
    float* x = qkv + token * ld + head * dim;
    const float* gain = head < heads.q ? rotary.q_gain : rotary.k_gain;
    if (gain) norm_row(x, gain, rotary.eps, dim, x);
    if (rotary.turned) rotate(pass, rotary, token, x);
    if (head < heads.q) continue;
    int64_t index = slot * heads.kv + head - heads.q;
    const bool shared = kv.shared();
    float* value = shared ? x : qkv + token * ld + units * dim + (head - heads.q) * heads.value;
    float* beside = shared ? x + heads.value : x;
    if (kv.type != Type::I8) tell(kv.type, beside, dim - (beside - x), value, heads.value);
    put(kv.type, kv.keys, kv.key_scales, index, x, dim);
    if (!shared) put(kv.type, kv.values, kv.value_scales, index, value, heads.value);
  }
}
