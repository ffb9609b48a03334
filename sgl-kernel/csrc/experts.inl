// A mixture of experts: tokens go through a few of many gated feed-forward layers each (kernels.h).
//
// A pair is a token and one of its picks: pair = token * picks + pick, the shared expert being the
// last pick. Pairs are sorted by expert, of one expert by token; `order` tells which pair stands at
// a place. The rows of x are prepared in that order, so that each expert's product is one over rows
// that lie side by side; its tasks and those of the other experts are done by whichever member is
// free. The outputs of each place stand by themselves until a token sums its own, always in the
// order of its picks: which tokens share an expert never shows in the result.
//
// Rows of x are taken in slabs. Scratch of a slab, each part aligned to 64 bytes:
//
//   logits   float [rows][router.n]
//   shares   float [pairs]           weight of each pair
//   picked   int32 [pairs]           expert of each pair
//   order    int32 [pairs]           pair at each place
//   places   int32 [pairs]           place of each pair
//   firsts   int32 [experts + 1]     place of each expert's first pair
//   inputs   rows for gate_up, of one expert after the other; the router's before that
//   middle   float, the gated rows   inputs of down behind it, in the place of `inputs`
//   parts    float [pairs][width]

constexpr int64_t SLAB_BYTES = 32 << 20;  // of scratch
constexpr int64_t MAX_EXPERTS = 1024;

struct Slab {
  int64_t experts, picks, pairs, inner;  // inner: of all picks of a token together
  size_t logits, shares, picked, order, places, firsts, inputs, middle, parts, bytes;
};

static inline size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The most that the inputs of all experts' products take, however m tokens go to them. A row has
// its stride and perhaps a scale; those of an expert begin at a cache line, as do their scales.
static size_t rows_bytes(const Experts& x, const Matrix* w, int64_t m) {
  const Routing& r = x.routing;
  auto row = [&](int64_t e) { return static_cast<size_t>(inputs_of(layout(w[e]), 0).stride) + 4; };
  size_t widest = 0;
  for (int64_t e = 0; e < (x.alike ? 1 : r.experts); e++)
    widest = row(e) > widest ? row(e) : widest;
  size_t bytes = static_cast<size_t>(m * r.top_k) * widest;
  if (x.shared) bytes += static_cast<size_t>(m) * row(r.experts);
  return bytes + static_cast<size_t>(r.experts + x.shared) * 128;
}

static Slab slab_of(const Experts& x, int64_t rows) {
  const Routing& r = x.routing;
  Slab s;
  s.experts = r.experts + x.shared, s.picks = r.top_k + x.shared, s.pairs = rows * s.picks;
  int64_t widest = 0;
  for (int64_t e = 0; e < (x.alike ? 1 : r.experts); e++)
    widest = x.down[e].k > widest ? x.down[e].k : widest;
  s.inner = r.top_k * widest + (x.shared ? x.down[r.experts].k : 0);
  size_t pairs = aligned(static_cast<size_t>(s.pairs) * 4);
  size_t in = rows_bytes(x, x.gate_up, rows), out = rows_bytes(x, x.down, rows);
  size_t first = scratch_bytes(x.router, rows);
  in = in > out ? in : out;
  s.logits = 0;
  s.shares = s.logits + aligned(static_cast<size_t>(rows * x.router.n) * 4);
  s.picked = s.shares + pairs;
  s.order = s.picked + pairs;
  s.places = s.order + pairs;
  s.firsts = s.places + pairs;
  s.inputs = s.firsts + aligned(static_cast<size_t>(s.experts + 1) * 4);
  s.middle = s.inputs + aligned(in > first ? in : first);
  s.parts = s.middle + aligned(static_cast<size_t>(rows * s.inner) * 4);
  s.bytes = s.parts + aligned(static_cast<size_t>(s.pairs * x.router.k) * 4);
  return s;
}

static int64_t slab_rows(const Experts& x, int64_t m) {
  size_t row = (slab_of(x, 64).bytes - slab_of(x, 0).bytes) / 64 + 1;
  int64_t rows = static_cast<int64_t>(static_cast<size_t>(SLAB_BYTES) / row);
  rows = rows < 1 ? 1 : rows;
  return m < rows ? m : rows;
}

static size_t experts_bytes(const Experts& x, int64_t m) {
  return slab_of(x, slab_rows(x, m)).bytes;
}

// ---- routing ---------------------------------------------------------------------------------

static inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// The best of merit[0, n) that is not taken, the first of equals; what is not a number comes last.
static int64_t best_of(const float* merit, const bool* taken, int64_t n) {
  int64_t best = -1;
  for (int64_t e = 0; e < n; e++)
    if (!taken[e] && (best < 0 || merit[e] > merit[best] ||
                      (merit[best] != merit[best] && merit[e] == merit[e])))
      best = e;
  return best;
}

// All but the `kept` best runs of experts are taken.
static void keep_groups(const Routing& r, const float* merit, bool* taken) {
  int64_t each = r.experts / r.groups;
  float sums[MAX_EXPERTS];
  for (int64_t g = 0; g < r.groups; g++) {
    bool used[MAX_EXPERTS] = {};
    sums[g] = 0;
    for (int64_t i = 0; i < r.group_best; i++) {
      int64_t best = best_of(merit + g * each, used, each);
      sums[g] += merit[g * each + best];
      used[best] = true;
    }
  }
  bool kept[MAX_EXPERTS] = {};
  for (int64_t i = 0; i < r.kept; i++) kept[best_of(sums, kept, r.groups)] = true;
  for (int64_t e = 0; e < r.experts; e++) taken[e] = !kept[e / each];
}

static void route(const Routing& r, const float* logits, float* shares, int32_t* picked) {
  float scores[MAX_EXPERTS];
  bool taken[MAX_EXPERTS] = {};
  if (r.sigmoid) {
    for (int64_t e = 0; e < r.experts; e++) scores[e] = sigmoid(logits[e]);
  } else if (!r.renormalise || r.bias || r.kept < r.groups) {
    float top = logits[0], total = 0;
    for (int64_t e = 1; e < r.experts; e++) top = logits[e] > top ? logits[e] : top;
    for (int64_t e = 0; e < r.experts; e++) total += scores[e] = std::exp(logits[e] - top);
    for (int64_t e = 0; e < r.experts; e++) scores[e] /= total;
  }
  float merits[MAX_EXPERTS];
  // A softmax has the order of its logits, but for what rounding makes equal.
  const float* merit = r.bias || r.kept < r.groups ? merits : r.sigmoid ? scores : logits;
  for (int64_t e = 0; merit == merits && e < r.experts; e++)
    merits[e] = scores[e] + (r.bias ? r.bias[e] : 0);
  if (r.kept < r.groups) keep_groups(r, merit, taken);
  for (int64_t i = 0; i < r.top_k; i++) {
    int64_t e = best_of(merit, taken, r.experts);
    taken[e] = true;
    picked[i] = static_cast<int32_t>(e);
    shares[i] = r.sigmoid || !r.renormalise ? scores[e] : logits[e];
  }
  float total = 0;
  if (r.renormalise && !r.sigmoid) {  // a softmax of the chosen is one of all, renormalised
    float top = shares[0];
    for (int64_t i = 1; i < r.top_k; i++) top = shares[i] > top ? shares[i] : top;
    for (int64_t i = 0; i < r.top_k; i++) shares[i] = std::exp(shares[i] - top);
  }
  for (int64_t i = 0; i < r.top_k; i++) total += shares[i];
  if (r.sigmoid) total += 1e-20f;
  if (!r.renormalise) total = 1;
  for (int64_t i = 0; i < r.top_k; i++) shares[i] = shares[i] / total * r.scale;
}

// A stable sort of pairs by expert.
static void sort_pairs(const Slab& s, const int32_t* picked, int32_t* order, int32_t* places,
                       int32_t* firsts) {
  memset(firsts, 0, static_cast<size_t>(s.experts + 1) * 4);
  for (int64_t p = 0; p < s.pairs; p++) firsts[picked[p] + 1]++;
  for (int64_t e = 0; e < s.experts; e++) firsts[e + 1] += firsts[e];
  for (int64_t p = 0; p < s.pairs; p++) {
    int32_t place = firsts[picked[p]]++;
    order[place] = static_cast<int32_t>(p);
    places[p] = place;
  }
  for (int64_t e = s.experts; e > 0; e--) firsts[e] = firsts[e - 1];
  firsts[0] = 0;
}

// ---- products --------------------------------------------------------------------------------

// Goes through the experts that have pairs, with what belongs to each.
struct Walk {
  const Slab& s;
  const Matrix* w;
  const int32_t* firsts;
  uint8_t* inputs;                    // of expert e
  int64_t e = -1, floats = 0, m = 0;  // floats of middle before e's
  Cut c{};

  Walk(const Slab& s, const Matrix* w, const int32_t* firsts, uint8_t* inputs)
      : s(s), w(w), firsts(firsts), inputs(inputs) {}

  // `each`: floats of a row of expert e in the middle.
  template <class Each>
  bool next(int size, const Each& each) {
    if (e >= 0) {
      inputs += aligned(static_cast<size_t>(c.in.rows_at + m * c.in.stride));
      floats += m * each(e);
    }
    do e++;
    while (e < s.experts && firsts[e + 1] == firsts[e]);
    if (e >= s.experts) return false;
    m = firsts[e + 1] - firsts[e];
    c = cut(w[e], m, size);
    return true;
  }
};

// y[place] = w[expert] * the inputs of the place, for all places; ends with a barrier. `at(walk)`:
// where the expert's rows begin, and how far they are apart.
template <class At>
static void multiply_all(Team& team, const Experts& x, const Walk& start, const float* const* bias,
                         const At& at) {
  auto each = [&](int64_t e) { return x.down[e].k; };
  int64_t tasks = 0;
  for (Walk walk = start; walk.next(team.size, each);) tasks += walk.c.tasks;
  Walk walk = start;
  int64_t before = 0;  // tasks of experts before this one
  bool any = false;
  team.each(tasks, [&](int64_t task) {
    while (!any || task >= before + walk.c.tasks) {  // tasks come in order
      if (any) before += walk.c.tasks;
      walk.next(team.size, each);
      any = true;
#if HAVE_TILES
      tiles_begin(walk.m);
#endif
    }
    int64_t ld;
    float* y = at(walk, ld);
    Epilogue e{bias[walk.e], false, x.act};
    Output o{walk.w[walk.e], walk.c.l, e, reinterpret_cast<const float*>(walk.inputs), y, ld};
    multiply_task(walk.c, o, walk.inputs, task - before);
  });
#if HAVE_TILES
  tiles_end();
#endif
}

// Rows of the inputs of all places: row(walk, place, i) is where the i-th of an expert comes from.
template <class Row>
static void prepare_all(Team& team, const Experts& x, Walk walk, const Norm& norm, const Row& row) {
  Range mine = team.part(walk.s.pairs);
  auto each = [&](int64_t e) { return x.down[e].k; };
  while (walk.next(team.size, each)) {
    int64_t first = walk.firsts[walk.e], last = first + walk.m;
    int64_t from = mine.begin > first ? mine.begin : first, to = mine.end < last ? mine.end : last;
    for (int64_t p = from; p < to; p++)
      prepare_row(walk.c.l, walk.c.in, norm, row(walk, p), p - first, walk.inputs);
  }
}

// y = the weighted sum over the token's picks, in their order; or is added to y.
static void join(const Slab& s, const float* shares, const int32_t* places, const float* parts,
                 int64_t width, bool add, float* y) {
  for (int64_t i = 0; i < width; i += LANES) {
    int64_t count = width - i;
    bool whole = count >= LANES;
    F total{};
    for (int64_t j = 0; j < s.picks; j++) {
      const float* part = parts + places[j] * width + i;
      total += splat(shares[j]) * (whole ? load(part) : load_part(part, count));
    }
    if (add) total += whole ? load(y + i) : load_part(y + i, count);
    if (whole) store(y + i, total);
    else store_part(y + i, total, count);
  }
}

static void experts_slab(Team& team, const Experts& x, const Norm& norm, const float* in,
                         int64_t ldx, int64_t rows, bool add, float* y, int64_t ldy,
                         uint8_t* scratch) {
  const Routing& r = x.routing;
  Slab s = slab_of(x, rows);
  int64_t width = x.router.k;
  float* logits = reinterpret_cast<float*>(scratch + s.logits);
  float* shares = reinterpret_cast<float*>(scratch + s.shares);
  int32_t* picked = reinterpret_cast<int32_t*>(scratch + s.picked);
  int32_t* order = reinterpret_cast<int32_t*>(scratch + s.order);
  int32_t* places = reinterpret_cast<int32_t*>(scratch + s.places);
  int32_t* firsts = reinterpret_cast<int32_t*>(scratch + s.firsts);
  float* middle = reinterpret_cast<float*>(scratch + s.middle);
  float* parts = reinterpret_cast<float*>(scratch + s.parts);

  prepare(team, x.router, norm, in, ldx, rows, scratch + s.inputs);
  team.barrier();
  Epilogue plain{x.router_bias, false, x.act};
  multiply(team, x.router, scratch + s.inputs, rows, plain, logits, x.router.n);
  Range mine = team.part(rows);
  for (int64_t t = mine.begin; t < mine.end; t++) {
    const float* of = logits + t * x.router.n;
    float* share = shares + t * s.picks;
    int32_t* pick = picked + t * s.picks;
    route(r, of, share, pick);
    if (!x.shared) continue;
    pick[r.top_k] = static_cast<int32_t>(r.experts);
    share[r.top_k] = x.shared_gate ? sigmoid(of[r.experts]) : 1;
  }
  team.barrier();
  if (team.rank == 0) sort_pairs(s, picked, order, places, firsts);
  team.barrier();

  Walk up(s, x.gate_up, firsts, scratch + s.inputs), down(s, x.down, firsts, scratch + s.inputs);
  auto width_of = [&](const Walk& walk) { return x.down[walk.e].k; };
  prepare_all(team, x, up, norm,
              [&](const Walk&, int64_t p) { return in + order[p] / s.picks * ldx; });
  team.barrier();
  multiply_all(team, x, up, x.gate_up_bias, [&](const Walk& walk, int64_t& ld) {
    return ld = width_of(walk), middle + walk.floats;
  });
  prepare_all(team, x, down, {nullptr, 0}, [&](const Walk& walk, int64_t p) {
    return middle + walk.floats + (p - firsts[walk.e]) * width_of(walk);
  });
  team.barrier();
  multiply_all(team, x, down, x.down_bias, [&](const Walk& walk, int64_t& ld) {
    return ld = width, parts + firsts[walk.e] * width;
  });
  for (int64_t t = mine.begin; t < mine.end; t++)
    join(s, shares + t * s.picks, places + t * s.picks, parts, width, add, y + t * ldy);
}

static void experts(Team& team, const Experts& x, const Norm& norm, const float* in, int64_t ldx,
                    int64_t m, bool add, float* y, int64_t ldy, void* scratch) {
  int64_t slab = slab_rows(x, m);
  for (int64_t t = 0; t < m; t += slab) {
    if (t) team.barrier();  // the scratch of the slab before is free
    int64_t rows = m - t < slab ? m - t : slab;
    experts_slab(team, x, norm, in + t * ldx, ldx, rows, add, y + t * ldy, ldy,
                 static_cast<uint8_t*>(scratch));
  }
}
