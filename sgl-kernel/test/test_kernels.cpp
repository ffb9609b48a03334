// Tests of the kernels of every instruction set that this machine has, without Python: `make
// kernels-arm` runs them for Arm in an emulator. Products, attention, norms, sums of probabilities
// and samples against loops in double precision; a row's bits against the same row alone. The tests
// in Python (test/cpu/sgl_kernel) hold more, on the machine that runs them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../csrc/kernels.h"

#define CHECK(condition, ...)                                                       \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d, %s: ", __FILE__, __LINE__, sgl::kernels().name); \
      std::fprintf(stderr, __VA_ARGS__);                                            \
      std::fprintf(stderr, "\n");                                                   \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (0)

namespace {

using namespace sgl;
using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed * 2654435761u + 1) {}
  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  }
  float uniform() { return static_cast<float>(next() % 20001) / 10000.f - 1.f; }  // in [-1, 1]
};

Floats floats(size_t count, uint64_t seed) {
  Random random(seed);
  Floats found(count);
  for (float& x : found) x = random.uniform();
  return found;
}

// Memory aligned to 64 bytes, as packed matrices and scratch need.
struct Memory {
  void* at;
  explicit Memory(size_t bytes) : at(aligned_alloc(64, (bytes / 64 + 2) * 64)) {}
  Memory(const Memory&) = delete;
  ~Memory() { free(at); }
};

template <class Work>
void run(int threads, const Work& work) {
  auto body = [&](Team& team) { work(team); };
  parallel(threads, body);
}

float rounded(float x) {  // to bf16, to nearest, ties to even
  uint32_t u;
  memcpy(&u, &x, 4);
  u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
  memcpy(&x, &u, 4);
  return x;
}

Floats multiplied(const Matrix& w, const Floats& x, int64_t m, const Epilogue& e, int threads,
                  Floats y) {
  const Kernels& k = kernels();
  Memory scratch(k.scratch_bytes(w, m));
  const int64_t outputs = w.paired ? w.n / 2 : w.n;
  run(threads, [&](Team& team) {
    k.prepare(team, w, {}, x.data(), w.k, m, scratch.at);
    team.barrier();
    k.multiply(team, w, scratch.at, m, e, y.data(), outputs);
  });
  return y;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

void check_product(const Matrix& w, int64_t m) {
  const Kernels& k = kernels();
  const bool bytes = w.format == Format::W8A8;
  const int64_t outputs = w.paired ? w.n / 2 : w.n;
  const Floats x = floats(static_cast<size_t>(m * w.k), 7),
               bias = floats(static_cast<size_t>(w.n), 8);
  Floats dense(static_cast<size_t>(w.n * w.k));
  for (int64_t i = 0; i < w.n; i++) k.unpack(w, i, dense.data() + i * w.k);
  const Floats before(static_cast<size_t>(m * outputs), 0.5f);
  const Epilogue e{bias.data(), !w.paired, Activation::SILU};
  const Floats y = multiplied(w, x, m, e, 1, before);
  CHECK(multiplied(w, x, m, e, 3, before) == y, "threads change a product");
  for (int64_t t = 0; t < m; t++) {
    const Floats row(x.begin() + t * w.k, x.begin() + (t + 1) * w.k);
    const Floats one(before.begin(), before.begin() + outputs);
    const Floats alone = multiplied(w, row, 1, e, 1, one);
    CHECK(!memcmp(alone.data(), y.data() + t * outputs, alone.size() * 4),
          "row %d of %d has other bits alone", static_cast<int>(t), static_cast<int>(m));
    float top = 0;
    for (float v : row) top = std::max(top, std::fabs(v));
    for (int64_t i = 0; i < outputs; i++) {
      double sums[2] = {}, off = 0;
      for (int half = 0; half <= w.paired; half++) {
        const float* of = dense.data() + (i + half * outputs) * w.k;
        for (int64_t j = 0; j < w.k; j++) {
          const bool plain = w.format == Format::F32 || bytes;
          sums[half] += static_cast<double>(of[j]) * (plain ? row[j] : rounded(row[j]));
          off += std::fabs(of[j]) * (bytes ? top / 127 * 0.51 : 4e-6);
        }
        sums[half] += bias[static_cast<size_t>(i + half * outputs)];
      }
      const double want = w.paired ? silu(sums[0]) * sums[1] : sums[0] + 0.5;
      if (w.paired) off = off * (2 + std::fabs(sums[0]) + std::fabs(sums[1]));
      const double got = y[static_cast<size_t>(t * outputs + i)];
      CHECK(std::fabs(got - want) <= off + 2e-5, "format %d, %d x %d, %d rows: %g, not %g",
            static_cast<int>(w.format), static_cast<int>(w.n), static_cast<int>(w.k),
            static_cast<int>(m), got, want);
    }
  }
}

void products() {
  const Kernels& k = kernels();
  const Format formats[] = {Format::F32, Format::BF16, Format::W8A8, Format::W8, Format::W4};
  const int64_t shapes[][2] = {{2, 1}, {6, 9}, {16, 64}, {34, 33}, {130, 192}};
  for (Format format : formats)
    for (auto [n, inputs] : shapes)
      for (bool paired : {false, true}) {
        Matrix w{format, n, inputs, 64, paired, nullptr};
        Memory memory(k.packed_bytes(format, n, inputs, 64));
        const Floats source = floats(static_cast<size_t>(n * inputs), 3);
        w.data = memory.at;
        run(2, [&](Team& team) { k.pack(team, w, source.data(), Type::F32, inputs, memory.at); });
        for (int64_t m : {1, 5, 13, 100}) check_product(w, m);
      }
  // Integers that were quantised elsewhere, with lows.
  for (Format format : {Format::W4Z, Format::W4M, Format::W8Z, Format::W8M}) {
    const int64_t n = 34, inputs = 96, group = 32, groups = inputs / group;
    Random random(5);
    std::vector<int8_t> q(static_cast<size_t>(n * inputs));
    const bool nibbles = format == Format::W4Z || format == Format::W4M;
    for (int8_t& v : q) v = static_cast<int8_t>(nibbles ? random.next() % 16 - 8 : random.next());
    Floats scales(static_cast<size_t>(n * groups)), lows(scales.size());
    for (float& s : scales) s = 0.0625f * static_cast<float>(1 + random.next() % 7);
    for (float& l : lows) l = static_cast<float>(static_cast<int>(random.next() % 9) - 4);
    Matrix w{format, n, inputs, group, false, nullptr};
    Memory memory(k.packed_bytes(format, n, inputs, group));
    w.data = memory.at;
    run(2, [&](Team& team) {
      k.pack_integers(team, w, q.data(), inputs, scales.data(), lows.data(), memory.at);
    });
    for (int64_t m : {1, 13}) check_product(w, m);
  }
}

// Rows of new tokens behind tokens in the pool, one of them with a beginning that another has too.
void attention(Type type, int64_t window) {
  const Kernels& k = kernels();
  const Heads heads{4, 2, 24, 0.3f, window, 0.f, 24, nullptr};
  const int64_t lengths[] = {5, 90, 1, 140}, news[] = {5, 3, 1, 70}, capacity = 256;
  const int64_t width = (heads.q + 2 * heads.kv) * heads.dim;
  const size_t sizes[] = {4, 2, 1, 1};
  const size_t each = sizes[static_cast<int>(type)];
  Memory keys(static_cast<size_t>(capacity * heads.kv * heads.dim) * each);
  Memory values(static_cast<size_t>(capacity * heads.kv * heads.dim) * each);
  Floats key_scales(static_cast<size_t>(capacity * heads.kv)), value_scales(key_scales.size());
  const bool scaled = type == Type::I8;
  const KV kv{type, keys.at, values.at, scaled ? key_scales.data() : nullptr,
              scaled ? value_scales.data() : nullptr};
  const Rotary none{nullptr, nullptr, 0, nullptr, nullptr, 0.f, {}};
  // What each row has seen, by position: q, k, v of a token.
  std::vector<Floats> seen;
  Ints pages, tables{0};
  int32_t slot = 0;
  for (int64_t length : lengths) {
    for (int64_t i = 0; i < length; i++) pages.push_back(slot++ % static_cast<int32_t>(capacity));
    tables.push_back(static_cast<int32_t>(pages.size()));
    seen.push_back(floats(static_cast<size_t>(length * width), static_cast<uint64_t>(length)));
  }
  Floats out;
  for (bool before : {true, false}) {  // first what lies in the pool, then the new tokens
    Ints ids, positions, starts, counts, firsts, own{0}, own_pages;
    Floats qkv;
    for (size_t r = 0; r < 4; r++) {
      const int64_t begin = before ? 0 : lengths[r] - news[r],
                    end = before ? lengths[r] - news[r] : lengths[r];
      if (begin == end) continue;
      firsts.push_back(static_cast<int32_t>(ids.size()));
      starts.push_back(static_cast<int32_t>(begin)),
          counts.push_back(static_cast<int32_t>(end - begin));
      for (int64_t i = begin; i < end; i++)
        ids.push_back(0), positions.push_back(static_cast<int32_t>(i));
      qkv.insert(qkv.end(), seen[r].begin() + begin * width, seen[r].begin() + end * width);
      own_pages.insert(own_pages.end(), pages.begin() + tables[r], pages.begin() + tables[r] + end);
      own.push_back(static_cast<int32_t>(own_pages.size()));
    }
    Pass pass{};
    pass.rows = static_cast<int64_t>(counts.size()), pass.tokens = static_cast<int64_t>(ids.size());
    pass.page_size = 1, pass.ids = ids.data(), pass.positions = positions.data();
    pass.starts = starts.data(), pass.counts = counts.data(), pass.firsts = firsts.data();
    pass.tables = own.data(), pass.pages = own_pages.data();
    out.assign(static_cast<size_t>(pass.tokens * heads.q * heads.value), 0);
    Floats again = out;
    for (int threads : {1, 3}) {
      Floats x = qkv;
      Memory scratch(k.attend_bytes(pass, heads, threads));
      Floats& to = threads == 1 ? out : again;
      run(threads, [&](Team& team) {
        k.append(team, pass, heads, none, x.data(), width, kv);
        team.barrier();
        k.attend(team, pass, heads, x.data(), width, kv, to.data(), heads.q * heads.value,
                 scratch.at);
      });
    }
    CHECK(out == again, "threads change attention");
  }
  const double off = type == Type::F32    ? 2e-5
                     : type == Type::BF16 ? 2e-2
                     : type == Type::I8   ? 3e-2
                                          : 2e-1;
  const float* got = out.data();
  for (size_t r = 0; r < 4; r++)
    for (int64_t t = lengths[r] - news[r]; t < lengths[r]; t++)
      for (int64_t h = 0; h < heads.q; h++, got += heads.value) {
        const float* q = seen[r].data() + t * width + h * heads.dim;
        const int64_t head = h / (heads.q / heads.kv);
        const int64_t first = window ? std::max<int64_t>(0, t - window + 1) : 0;
        std::vector<double> weights, sums(static_cast<size_t>(heads.value));
        double total = 0;
        for (int64_t i = first; i <= t; i++) {
          const float* key = seen[r].data() + i * width + (heads.q + head) * heads.dim;
          double score = 0;
          for (int64_t d = 0; d < heads.dim; d++) score += static_cast<double>(q[d]) * key[d];
          weights.push_back(std::exp(score * heads.scale)), total += weights.back();
          const float* value = key + heads.kv * heads.dim;
          for (int64_t d = 0; d < heads.value; d++)
            sums[static_cast<size_t>(d)] += weights.back() * value[d];
        }
        for (int64_t d = 0; d < heads.value; d++)
          CHECK(std::fabs(got[d] - sums[static_cast<size_t>(d)] / total) <= off,
                "attention, pool of type %d: %g, not %g", static_cast<int>(type), got[d],
                sums[static_cast<size_t>(d)] / total);
      }
}

void rows() {
  const Kernels& k = kernels();
  for (int64_t n : {1, 7, 48, 129}) {
    const int64_t m = 3;
    const Floats x = floats(static_cast<size_t>(m * n), 11),
                 gain = floats(static_cast<size_t>(n), 12);
    Floats y(x.size());
    run(2, [&](Team& team) { k.norm(team, {gain.data(), 1e-5f}, x.data(), n, m, n, y.data(), n); });
    Floats largest(m);
    std::vector<double> sums(m);
    run(2, [&](Team& team) { k.log_sums(team, x.data(), n, m, n, largest.data(), sums.data()); });
    const Draw greedy{0.f, 1.f, 0.f, 0, 0., nullptr};
    const Draw draws[] = {greedy, greedy, greedy};
    Memory scratch(k.draw_bytes(n, 2));
    Ints tokens(m);
    run(2, [&](Team& team) { k.draw(team, x.data(), n, m, n, draws, tokens.data(), scratch.at); });
    for (int64_t r = 0; r < m; r++) {
      const float* row = x.data() + r * n;
      double squares = 0, total = 0;
      for (int64_t i = 0; i < n; i++) squares += static_cast<double>(row[i]) * row[i];
      for (int64_t i = 0; i < n; i++) {
        const double want = row[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) *
                            gain[static_cast<size_t>(i)];
        CHECK(std::fabs(y[static_cast<size_t>(r * n + i)] - want) <= 1e-5, "norm of %d",
              static_cast<int>(n));
      }
      const int64_t best = std::max_element(row, row + n) - row;
      for (int64_t i = 0; i < n; i++) total += std::exp(static_cast<double>(row[i]) - row[best]);
      CHECK(largest[static_cast<size_t>(r)] == row[best], "largest of %d", static_cast<int>(n));
      CHECK(std::fabs(sums[static_cast<size_t>(r)] - std::log(total)) <= 1e-5, "sum of %d",
            static_cast<int>(n));
      CHECK(tokens[static_cast<size_t>(r)] == best, "token %d, not %d",
            tokens[static_cast<size_t>(r)], static_cast<int>(best));
    }
  }
}

}  // namespace

// Arguments: the names of the instruction sets that must be there, best first.
int main(int count, char** wanted) {
  for (int i = 0; i + 1 < count; i++) {
    const char* name = available(i);
    if (!name || strcmp(name, wanted[i + 1])) {
      std::fprintf(stderr, "number %d is %s, not %s\n", i, name ? name : "missing", wanted[i + 1]);
      return 1;
    }
  }
  for (int i = 0; available(i); i++) {
    choose(available(i));
    products();
    for (Type type : {Type::F32, Type::BF16, Type::I8, Type::F8})
      for (int64_t window : {0, 17}) attention(type, window);
    rows();
    std::printf("%s: well\n", available(i));
  }
}
