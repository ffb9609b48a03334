// Paged attention with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022) in float32.
//
// A slice of work is some queries of rows that share a prefix, and some key heads. It walks along
// the chunks of keys; each is packed once (chunk.inl), and all queries that see it meet it
// (tile.inl):
//   scores = queries x keys, weights = 2^(scores - maximum so far), output += weights x values;
//   scores come times log2 e.
// Maximum, sum and output of a query are its record, which lies in memory between chunks. After
// every kSegment chunks the record is joined to that of all segments before.
//
// The same arithmetic in the same order, whatever tile, slice or pass a query is in: chunks and
// segments lie at fixed positions, and a key that a query does not see changes nothing: its weight
// is exactly 0, and its value a number (append.inl sees to that). Hence the promise of kernels.h.
#include "activation.inl"
#include "norm.inl"
#include "append.inl"
#include "chunk.inl"
#include "tile.inl"
#if HAVE_TILES
#include "attention_tiles.inl"
#else
static constexpr bool in_tiles(Form) { return false; }
static constexpr int kTallest = kQueries;
#endif

// Queries that meet a chunk together, and units of a head as they lie in memory: whole tiles.
static constexpr int tall(Form form) { return in_tiles(form) ? kTallest : kQueries; }
static constexpr int64_t stride_of(Form form, int64_t units) {
  return in_tiles(form) ? (units + 15) / 16 * 16 : units;
}

// Memory of one thread.
struct Desk {
  void* plan;
  U *keys, *values;                  // a packed chunk
  float* scores;                     // [kTallest][kChunk]
  uint32_t* weights;                 // [kTallest][kChunk]
  float *key_scales, *value_scales;  // [kChunk]
  char* zeros;                       // a head of a key that is not there
  Slots* places;
  Query* queries;
  uint32_t* q;            // [heads][queries][group] heads, in units
  float *parts, *totals;  // records in the same order
};

struct Carve {
  char* at;
  size_t used = 0;
  template <class T>
  void operator()(T*& p, int64_t count) {
    if (at) p = reinterpret_cast<T*>(at + used);
    used += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  }
};

// What a query's state takes: itself and two records.
static int64_t state_floats(const Heads& heads) {
  return padded(heads.dim) + 2 * Record(heads.value).floats();
}

// The longer of a key and a value, as it is read.
static int64_t widest(const Heads& heads) {
  return padded(heads.dim > heads.value ? heads.dim : heads.value);
}

// A head's units, of any form.
static int64_t widest_units(const Heads& heads) {
  int64_t whole = padded(heads.dim),
          tiled = kTallest > kQueries ? (heads.dim / 2 + 15) / 16 * 16 : 0;
  return whole > tiled ? whole : tiled;
}

static size_t carve(Desk& desk, char* memory, const Pass& pass, const Heads& heads, int threads) {
  const Record record(heads.value);
  const int64_t floats = state_floats(heads);
  const int64_t states = plan_queries(heads, floats);
  Carve carve{memory};
  carve(desk.keys, kChunk * widest_units(heads) / LANES);
  carve(desk.values, kChunk * record.padded / LANES);
  carve(desk.scores, kTallest * kChunk);
  carve(desk.weights, kTallest * kChunk);
  carve(desk.key_scales, kChunk);
  carve(desk.value_scales, kChunk);
  carve(desk.zeros, 4 * widest(heads));
  carve(desk.places, 1);
  carve(desk.queries, states);
  carve(desk.q, states * widest_units(heads));
  carve(desk.parts, states * record.floats());
  carve(desk.totals, states * record.floats());
  char* plan = nullptr;
  carve(plan, static_cast<int64_t>(plan_bytes(pass, heads, threads, floats)));
  desk.plan = plan;
  return carve.used;
}

template <Form form>
struct Reader {
  const Pass& pass;
  const Heads& heads;
  const float* qkv;
  int64_t ld;
  const KV& kv;
  const Plan& plan;
  const Desk& desk;
  const Record record;
  const int64_t group, units;
  const int64_t stride;                  // units from a query head to the next
  const int64_t key_bytes, value_bytes;  // from a head to the next in its pool
  Slice slice;
  int64_t count;  // queries of the slice
#if HAVE_TILES
  mutable TileRows rows;
#endif

  Reader(const Pass& pass, const Heads& heads, const float* qkv, int64_t ld, const KV& kv,
         const Plan& plan, const Desk& desk)
      : pass(pass), heads(heads), qkv(qkv), ld(ld), kv(kv), plan(plan), desk(desk),
        record(heads.value), group(heads.q / heads.kv),
        units(paired(form) ? heads.dim / 2 : heads.dim), stride(stride_of(form, units)),
        key_bytes(heads.dim * element_bytes(form)),
        value_bytes(kv.shared() ? key_bytes : heads.value * element_bytes(form)), slice{},
        count(0) {}

  float* state(float* records, int64_t head, int64_t query) const {
    return records + (head * count + query) * group * record.floats();
  }

  // The slice's queries among those of a row: places in the slice.
  Range queries(int64_t i) const {
    int64_t begin = plan.bases[i], end = plan.bases[i + 1];
    if (begin < slice.begin) begin = slice.begin;
    if (end > slice.end) end = slice.end;
    return {begin - slice.begin, end - slice.begin};
  }

  // Queries, scaled, in units.
  void take(const Slice& work, float* out, int64_t ldo) {
    slice = work, count = work.end - work.begin;
    for (int64_t i = slice.first; i < slice.last; i++) {
      int64_t row = plan.order[i];
      Range mine = queries(i);
      for (int64_t x = mine.begin; x < mine.end; x++) {
        int64_t place = x + slice.begin - plan.bases[i], token = pass.firsts[row] + place;
        int64_t high = pass.starts[row] + place + 1;
        int64_t low = heads.window && high > heads.window ? high - heads.window : 0;
        desk.queries[x] = {low, high, out + token * ldo};
        for (int64_t h = 0; h < slice.heads; h++)
          for (int64_t g = 0; g < group; g++)
            take_head(qkv + token * ld + ((slice.head + h) * group + g) * heads.dim,
                      desk.q + ((h * count + x) * group + g) * stride);
      }
    }
  }

  void take_head(const float* from, uint32_t* to) const {
    F scale = splat(heads.scale * (heads.soft_cap != 0 ? 1.f : kLog2E));
    for (int64_t d = 0; d < heads.dim; d += LANES) {
      int64_t n = heads.dim - d < LANES ? heads.dim - d : LANES;
      F v = (n < LANES ? load_part(from + d, n) : load(from + d)) * scale;
      if constexpr (paired(form)) {
        H h = narrow(v);
        memcpy(reinterpret_cast<bf16*>(to) + d, &h, static_cast<size_t>(n) * 2);
      } else {
        memcpy(to + d, &v, static_cast<size_t>(n) * 4);
      }
    }
    memset(to + units, 0, static_cast<size_t>(stride - units) * 4);
  }

  void clear(float* records, Range range) const {
    for (int64_t h = 0; h < slice.heads; h++) {
      float* r = state(records, h, range.begin);
      for (int64_t x = 0; x < (range.end - range.begin) * group; x++, r += record.floats())
        record.clear(r);
    }
  }

  void join_all(float* totals, float* parts, Range range) const {
    for (int64_t h = 0; h < slice.heads; h++) {
      float *all = state(totals, h, range.begin), *part = state(parts, h, range.begin);
      for (int64_t x = 0; x < (range.end - range.begin) * group; x++) {
        join(record, all, part);
        all += record.floats(), part += record.floats();
      }
    }
  }

  void finish_all(float* totals, Range range) const {
    for (int64_t h = 0; h < slice.heads; h++)
      for (int64_t x = range.begin; x < range.end; x++) {
        float* r = state(totals, h, x);
        int64_t first = (slice.head + h) * group;
        float* out = desk.queries[x].out + first * heads.value;
        for (int64_t g = 0; g < group; g++)
          finish(record, r + g * record.floats(), heads.sinks ? heads.sinks + first + g : nullptr,
                 heads.value, out + g * heads.value);
      }
  }

  Range seen(Range range) const {
    Range all{INT64_MAX, 0};
    for (int64_t x = range.begin; x < range.end; x++) {
      const Query& query = desk.queries[x];
      if (query.low < all.begin) all.begin = query.low;
      if (query.high > all.end) all.end = query.high;
    }
    return all;
  }

  // ---- one chunk -------------------------------------------------------------------------------

  // The slots of a chunk's keys, as far as `limit`, the end of what is read at all; how many.
  int64_t slots(int64_t row, int64_t begin, int64_t limit, int64_t* to) const {
    int64_t n = limit - begin < kChunk ? limit - begin : kChunk;
    const int32_t* table = pass.pages + pass.tables[row];
    int64_t size = pass.page_size, page = begin / size, place = begin % size;
    for (int64_t i = 0; i < n; i++) {
      to[i] = table[page] * size + place;
      if (++place == size) place = 0, page++;
    }
    return n > 0 ? n : 0;
  }

  void scales(const float* from, int64_t head, float* to) const {
    const Slots& at = *desk.places;
    for (int64_t i = 0; i < kChunk; i++)
      to[i] = i < at.count ? from[at.now[i] * heads.kv + head] : 0.f;
  }

  // All queries of `range` meet a chunk, in records `parts`.
  void meet(int64_t row, int64_t chunk, int64_t limit, Range range, float* parts) const {
    Slots& at = *desk.places;
    int64_t begin = chunk * kChunk;
    at.count = slots(row, begin, limit, at.now);
    at.more = slots(row, begin + kChunk, limit, at.next);
    const int64_t key_slot = heads.kv * key_bytes, value_slot = heads.kv * value_bytes;
    const char* keys = static_cast<const char*>(kv.keys) + slice.head * key_bytes;
    const char* values = static_cast<const char*>(kv.values) + slice.head * value_bytes;
    Ahead more_keys{keys, key_slot, slice.heads * key_bytes, slice.heads * key_steps(units)};
    Ahead more_values{values, value_slot, slice.heads * value_bytes,
                      slice.heads * value_steps(form)};
    for (int64_t h = 0; h < slice.heads; h++) {
      int64_t head = slice.head + h;
      pack_keys<form>(keys + h * key_bytes, at, heads.dim, key_slot, more_keys, desk.zeros,
                      desk.keys);
      pack_values<form>(values + h * value_bytes, at, heads.value, record.padded, value_slot,
                        more_values, desk.zeros, desk.values);
      Scores of{begin, nullptr, nullptr, heads.soft_cap};
      if (kv.type == Type::I8) {
        scales(kv.key_scales, head, desk.key_scales);
        scales(kv.value_scales, head, desk.value_scales);
        of.key_scales = desk.key_scales, of.value_scales = desk.value_scales;
      }
      for (int64_t x = range.begin * group; x < range.end * group; x += tall(form)) {
        int64_t left = range.end * group - x;
        tile(of, at.count, h, x, static_cast<int>(left < tall(form) ? left : tall(form)), parts);
      }
    }
  }

  // Queries x... of head h, counted with the heads of a group.
  void tile(const Scores& of, int64_t keys, int64_t h, int64_t x, int n, float* parts) const {
    int64_t low = INT64_MAX, high = 0;
    for (int64_t i = x / group; i <= (x + n - 1) / group; i++) {
      const Query& query = desk.queries[i];
      low = query.low < low ? query.low : low;
      high = query.high > high ? query.high : high;
    }
    high -= of.begin;
    if (high <= 0 || low >= of.begin + kChunk) return;
    if (high < keys) keys = high;
    const uint32_t* q = desk.q + (h * count * group + x) * stride;
    float* records = state(parts, h, 0) + x * record.floats();
#if HAVE_TILES
    if constexpr (in_tiles(form)) return meet_in_tiles(of, keys, x, n, q, records);
#endif
    meet_in_vectors(of, keys, x, n, q, records);
  }

  void meet_in_vectors(const Scores& of, int64_t keys, int64_t x, int n, const uint32_t* q,
                       float* records) const {
    int64_t vectors = (keys + LANES - 1) / LANES;
    constexpr bool pairs = paired(form);
    product<pairs>(n, q, units, reinterpret_cast<uint32_t*>(desk.keys), kChunk, units, desk.scores,
                   kChunk, vectors, true);
    constexpr int64_t row = pairs ? kChunk / 2 : kChunk;
    for (int i = 0; i < n; i++)
      weigh<pairs>(of, desk.queries[(x + i) / group], desk.scores + i * kChunk, vectors, record,
                   records + i * record.floats(), desk.weights + i * row);
    product<pairs>(n, desk.weights, row, reinterpret_cast<uint32_t*>(desk.values), record.padded,
                   pairs ? (keys + 1) / 2 : keys, records, record.floats(), record.padded / LANES,
                   false);
  }

#if HAVE_TILES
  void meet_in_tiles(const Scores& of, int64_t keys, int64_t x, int n, const uint32_t* q,
                     float* records) const {
    rows.are(n);
    tiles_product(q, stride, reinterpret_cast<uint32_t*>(desk.keys), kChunk, stride / 16,
                  desk.scores, kChunk, (keys + 15) / 16, true);
    constexpr int64_t row = kChunk / 2;
    for (int i = 0; i < n; i++)
      weigh_pairs(of, desk.queries[(x + i) / group], desk.scores + i * kChunk, record,
                  records + i * record.floats(), desk.weights + i * row);
    tiles_product(desk.weights, row, reinterpret_cast<uint32_t*>(desk.values), record.padded,
                  (keys + 31) / 32, records, record.floats(), record.padded / 16, false);
  }
#endif

  // ---- one slice -------------------------------------------------------------------------------

  // Rows [a, b) of the order, which share chunks up to `from`, which were met.
  void walk(int64_t a, int64_t b, int64_t from) const {
    Range range{queries(a).begin, queries(b - 1).end}, keys = seen(range);
    int64_t row = plan.order[a], shared = INT64_MAX, limit = keys.end;
    for (int64_t i = a + 1; i < b; i++)
      if (plan.shared[i] < shared) shared = plan.shared[i];
    if (b - a > 1 && shared * kChunk < limit) limit = shared * kChunk;
    int64_t end = (limit + kChunk - 1) / kChunk;
    for (int64_t chunk = from; chunk < end; chunk++) {
      if ((chunk + 1) * kChunk > keys.begin) meet(row, chunk, limit, range, desk.parts);
      if ((chunk + 1) % kSegment == 0) {
        join_all(desk.totals, desk.parts, range);
        clear(desk.parts, range);
      }
    }
    if (b - a == 1) {
      join_all(desk.totals, desk.parts, range);
      return finish_all(desk.totals, range);
    }
    for (int64_t i = a, j; i < b; i = j) {
      for (j = i + 1; j < b && plan.shared[j] > shared; j++) continue;
      walk(i, j, end > from ? end : from);
    }
  }

  void run(const Slice& work, float* out, int64_t ldo, float* partials) {
    take(work, out, ldo);
    Range all{0, count};
    if (slice.segments == 0) {
      clear(desk.parts, all);
      clear(desk.totals, all);
      return walk(slice.first, slice.last, 0);
    }
    Range keys = seen(all);
    for (int64_t s = slice.segment; s < slice.segment + slice.segments; s++) {
      float* parts = segment(partials, s);
      clear(parts, all);
      int64_t end = (keys.end + kChunk - 1) / kChunk;
      if (end > (s + 1) * kSegment) end = (s + 1) * kSegment;
      for (int64_t chunk = s * kSegment; chunk < end; chunk++)
        if ((chunk + 1) * kChunk > keys.begin)
          meet(plan.order[slice.first], chunk, keys.end, all, parts);
    }
  }

  float* segment(float* partials, int64_t s) const {
    return partials + (slice.partial + s * count * slice.heads * group) * record.floats();
  }

  // The segments of a row and its heads, which several slices made, one after another.
  void join_segments(const Slice& work, float* out, int64_t ldo, float* partials) {
    take(work, out, ldo);
    Range all{0, count};
    clear(desk.totals, all);
    int64_t total = (seen(all).end + kChunk * kSegment - 1) / (kChunk * kSegment);
    for (int64_t s = 0; s < total; s++) join_all(desk.totals, segment(partials, s), all);
    finish_all(desk.totals, all);
  }
};

template <Form form>
static void attend_form(Team& team, const Pass& pass, const Heads& heads, const float* qkv,
                        int64_t ld, const KV& kv, float* out, int64_t ldo, const Desk& desk,
                        float* partials) {
  Plan work = plan(pass, heads, team.size, state_floats(heads), desk.plan);
  Reader<form> reader(pass, heads, qkv, ld, kv, work, desk);
  team.each(work.count, [&](int64_t i) { reader.run(work.slices[i], out, ldo, partials); });
  if (!work.split) return;
  team.each(work.count, [&](int64_t i) {
    const Slice& slice = work.slices[i];
    if (slice.segments && !slice.segment) reader.join_segments(slice, out, ldo, partials);
  });
}

static size_t attend_bytes(const Pass& pass, const Heads& heads, int threads) {
  Desk desk{};
  const Record record(heads.value);
  int64_t records = plan_records(pass, heads, threads);
  return carve(desk, nullptr, pass, heads, threads) * static_cast<size_t>(threads) +
         static_cast<size_t>(records * record.floats()) * 4;
}

static void attend(Team& team, const Pass& pass, const Heads& heads, const float* qkv, int64_t ld,
                   const KV& kv, float* out, int64_t ldo, void* scratch) {
  Desk desk{};
  auto* memory = static_cast<char*>(scratch);
  size_t each = carve(desk, nullptr, pass, heads, team.size);
  carve(desk, memory + each * static_cast<size_t>(team.rank), pass, heads, team.size);
  float* partials = reinterpret_cast<float*>(memory + each * static_cast<size_t>(team.size));
#if HAVE_TILES
  Flushed flushed;
#endif
  // What lies behind a head's last dimension and a chunk's last key is read, though nothing comes of
  // it.
  memset(desk.keys, 0, static_cast<size_t>(kChunk * widest_units(heads)) * 4);
  memset(desk.values, 0, static_cast<size_t>(kChunk * padded(heads.value)) * 4);
  memset(desk.zeros, 0, static_cast<size_t>(widest(heads)) * 4);
  switch (form_of(kv.type)) {
    case Form::FLOAT:
      return attend_form<Form::FLOAT>(team, pass, heads, qkv, ld, kv, out, ldo, desk, partials);
#if HAVE_DOT
    case Form::PAIR:
      return attend_form<Form::PAIR>(team, pass, heads, qkv, ld, kv, out, ldo, desk, partials);
    case Form::BYTE_PAIR:
      return attend_form<Form::BYTE_PAIR>(team, pass, heads, qkv, ld, kv, out, ldo, desk, partials);
    case Form::EIGHT_PAIR:
      return attend_form<Form::EIGHT_PAIR>(team, pass, heads, qkv, ld, kv, out, ldo, desk,
                                           partials);
    default: return;
#else
    case Form::EIGHT:
      return attend_form<Form::EIGHT>(team, pass, heads, qkv, ld, kv, out, ldo, desk, partials);
    case Form::WIDE:
      return attend_form<Form::WIDE>(team, pass, heads, qkv, ld, kv, out, ldo, desk, partials);
    case Form::BYTE:
      return attend_form<Form::BYTE>(team, pass, heads, qkv, ld, kv, out, ldo, desk, partials);
#endif
  }
}
