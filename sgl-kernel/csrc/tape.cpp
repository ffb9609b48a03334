#include "tape.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace sgl {
namespace {

constexpr size_t kAlign = 64;

void* allocate(size_t bytes) {
  return aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
}

}  // namespace

Tape::~Tape() {
  free(arena_);
  free(scratch_);
  free(handed_);
  free(low_);
}

int64_t Tape::buffer(int64_t width) {
  buffers_.push_back({width, chooses_, 0});
  return static_cast<int64_t>(buffers_.size()) - 1;
}

void Tape::embed(int64_t out, const Matrix& table, float scale) {
  Step s{};
  s.kind = Kind::EMBED, s.out = out, s.w = table, s.scale = scale;
  steps_.push_back(s);
}

void Tape::input(int64_t out) { embed(out, Matrix{}, 1.f); }

void Tape::share(int64_t first) { steps_.back().shared = first; }

void Tape::overwrite() { steps_.back().add = false; }

void Tape::reduce(int64_t out, int64_t x, Meeting* meeting, bool add) {
  Step s{};
  s.kind = Kind::REDUCE, s.out = out, s.x = x, s.meeting = meeting, s.add = add;
  steps_.push_back(s);
}

void Tape::choose(int64_t out, int64_t x) {
  Step s{};
  s.kind = Kind::CHOOSE, s.out = out, s.x = x;
  steps_.push_back(s);
  buffers_[static_cast<size_t>(out)].chosen = chooses_ = true;
}

void Tape::reorder(int64_t out, int64_t x, const int32_t* order) {
  Step s{};
  s.kind = Kind::REORDER, s.out = out, s.x = x, s.order = order;
  steps_.push_back(s);
}

void Tape::norm(int64_t out, int64_t to, int64_t x, const FullNorm& norm, int64_t first,
                int64_t count) {
  Step s{};
  s.kind = Kind::NORM, s.out = out, s.x = x, s.full = norm, s.first = first, s.count = count;
  s.to.first = to;
  steps_.push_back(s);
}

void Tape::activate(int64_t x, Activation act) {
  Step s{};
  s.kind = Kind::ACTIVATE, s.out = s.x = x, s.act = act;
  steps_.push_back(s);
}

void Tape::place(int64_t x, const float* table) {
  Step s{};
  s.kind = Kind::PLACE, s.out = s.x = x, s.table = table;
  steps_.push_back(s);
}

void Tape::linear(int64_t out, int64_t x, const Matrix& w, const Norm& norm,
                  const Epilogue& epilogue) {
  Step s{};
  s.kind = Kind::LINEAR, s.out = out, s.x = x, s.w = w, s.norm = norm, s.epilogue = epilogue;
  steps_.push_back(s);
}

void Tape::adapt(int64_t product) { steps_.back().product = product; }

void Tape::experts(int64_t out, int64_t x, const Experts& experts, const Norm& norm) {
  Step s{};
  s.kind = Kind::EXPERTS, s.out = out, s.x = x, s.experts = &experts, s.norm = norm;
  steps_.push_back(s);
}

void Tape::turn(int64_t out, Columns to, int64_t x, Columns from, int64_t count,
                const Rotary& rotary) {
  Step s{};
  s.kind = Kind::TURN, s.out = out, s.to = to, s.x = x, s.from = from, s.count = count;
  s.rotary = rotary;
  steps_.push_back(s);
}

void Tape::multiply_each(int64_t out, Columns to, int64_t x, Columns from, Parts parts) {
  Step s{};
  s.kind = Kind::PARTS, s.out = out, s.to = to, s.x = x, s.from = from;
  s.parts = std::move(parts);
  steps_.push_back(s);
}

void Tape::append(int64_t qkv, const Heads& heads, const Rotary& rotary, const KV& kv) {
  Step s{};
  s.kind = Kind::APPEND, s.out = s.x = qkv, s.heads = heads, s.rotary = rotary, s.kv = kv;
  steps_.push_back(s);
}

void Tape::attend(int64_t out, int64_t qkv, const Heads& heads, const KV& kv) {
  Step s{};
  s.kind = Kind::ATTEND, s.out = out, s.x = qkv, s.heads = heads, s.kv = kv;
  steps_.push_back(s);
}

// Whether a step from `from` on reads a buffer before one writes it anew.
bool Tape::read_later(int64_t buffer, size_t from) const {
  for (size_t i = from; i < steps_.size(); i++) {
    const Step& s = steps_[i];
    if (s.x == buffer || (s.out == buffer && s.kind != Kind::LINEAR)) return true;
    if (s.out == buffer) return s.epilogue.add;
  }
  return steps_.back().out == buffer;  // the result
}

// Marks products whose outputs only the product behind them reads, as they are.
void Tape::hand_over(bool adapted) {
  for (size_t i = 0; i + 1 < steps_.size(); i++) {
    Step &s = steps_[i], &next = steps_[i + 1];
    const bool prepared = i > 0 && steps_[i - 1].handed;  // there is memory for one at a time
    s.handed = s.kind == Kind::LINEAR && next.kind == Kind::LINEAR && !adapted && !prepared &&
               s.out == next.x && next.out != s.out && !s.epilogue.add && !next.norm.gain &&
               kernels().takes(next.w) && width(s.out) == next.w.k && !read_later(s.out, i + 2);
  }
}

static bool grow(void*& memory, size_t& has, size_t bytes) {
  if (bytes > has) {
    free(memory);
    memory = allocate(bytes);
    has = memory ? bytes : 0;
  }
  return !bytes || memory;
}

bool Tape::reserve(int threads, const Pass& pass, int64_t chosen, const Adapted* adapted) {
  size_t floats = 0;
  for (Buffer& b : buffers_) {
    b.place = static_cast<int64_t>(floats);
    int64_t rows = b.chosen ? chosen : pass.tokens;
    floats += static_cast<size_t>((rows * b.width + kAlign / 4 - 1) / (kAlign / 4) * (kAlign / 4));
  }
  if (floats * 4 > arena_bytes_) {
    free(arena_);
    arena_ = static_cast<float*>(allocate(floats * 4));
    arena_bytes_ = arena_ ? floats * 4 : 0;
    if (!arena_) return false;
  }
  hand_over(adapted != nullptr);
  size_t bytes = 0, handed = 0;
  int64_t rows = pass.tokens;
  bool given = false;
  const Step* attended = nullptr;  // layers alike need the same
  for (const Step& s : steps_) {
    if (s.kind == Kind::CHOOSE) rows = chosen;
    if (s.kind == Kind::LINEAR) {
      size_t& need = given ? handed : bytes;
      need = std::max(need, kernels().scratch_bytes(s.w, rows));
    }
    given = s.handed;
    if (s.kind == Kind::PARTS) bytes = std::max(bytes, parts_bytes(s.parts, rows));
    if (s.kind == Kind::EXPERTS) bytes = std::max(bytes, kernels().experts_bytes(*s.experts, rows));
    if (s.kind != Kind::ATTEND) continue;
    if (attended && attended->heads.window == s.heads.window) continue;
    bytes = std::max(bytes, kernels().attend_bytes(pass, s.heads, threads));
    attended = &s;
  }
  if (!grow(scratch_, scratch_bytes_, bytes) || !grow(handed_, handed_bytes_, handed)) return false;
  bytes = 0;
  for (const Step& s : steps_)
    if (adapted && s.product >= 0) bytes = std::max(bytes, kernels().low_bytes(*adapted, s.w.k));
  if (bytes > low_bytes_) {
    free(low_);
    low_ = static_cast<float*>(allocate(bytes));
    low_bytes_ = low_ ? bytes : 0;
  }
  return !bytes || low_;
}

// A product, with what adapters add to it.
void Tape::linear(Team& team, const Step& s, int64_t rows, const Adapted* adapted) const {
  const Kernels& k = kernels();
  const float* x = at(s.x);
  Epilogue epilogue = s.epilogue;
  Low low{adapted, s.product, low_};
  if (adapted && s.product >= 0 && adapted->touches(s.product)) {
    k.shrink(team, *adapted, s.product, s.norm, x, width(s.x), s.w.k, low_);
    epilogue.low = &low;
  }
  const bool prepared = &s != steps_.data() && (&s)[-1].handed;
  void* inputs = prepared ? handed_ : scratch_;
  if (s.handed) epilogue.next = &(&s)[1].w, epilogue.rows = handed_;
  if (!prepared) {
    k.prepare(team, s.w, s.norm, x, width(s.x), rows, scratch_);
    team.barrier();
  }
  k.multiply(team, s.w, inputs, rows, epilogue, at(s.out), width(s.out));
}

void Tape::step(Team& team, const Step& s, const Pass& pass, int64_t rows, const int32_t* chosen,
                const Adapted* adapted) const {
  const Kernels& k = kernels();
  float* out = at(s.out);
  const float* x = at(s.x);
  int64_t ldo = width(s.out), ldx = width(s.x);
  switch (s.kind) {
    case Kind::EMBED: {
      Range mine = team.part(rows);
      const int32_t* end = pass.given_at + pass.given;
      const int32_t* given = std::lower_bound(pass.given_at, end, mine.begin);
      for (int64_t t = mine.begin; t < mine.end; t++) {
        if (given != end && *given == t) {
          const float* from = pass.embeddings + (given++ - pass.given_at) * ldo;
          if (s.shared > 0) memset(out + t * ldo, 0, static_cast<size_t>(ldo) * 4);
          else memcpy(out + t * ldo, from, static_cast<size_t>(ldo) * 4);
          continue;
        }
        int64_t id = pass.ids[t];
        if (s.shared >= 0) {
          id -= s.shared;
          if (id < 0 || id >= s.w.n) {
            memset(out + t * ldo, 0, static_cast<size_t>(ldo) * 4);
            continue;
          }
        }
        k.unpack(s.w, static_cast<int32_t>(id), out + t * ldo);
        if (s.scale != 1.f)
          for (int64_t i = 0; i < ldo; i++) out[t * ldo + i] *= s.scale;
      }
      break;
    }
    case Kind::CHOOSE: {
      Range mine = team.part(rows);
      for (int64_t t = mine.begin; t < mine.end; t++)
        memcpy(out + t * ldo, x + chosen[t] * ldx, static_cast<size_t>(ldx) * 4);
      break;
    }
    case Kind::REORDER: {
      Range mine = team.part(rows);
      for (int64_t t = mine.begin; t < mine.end; t++)
        for (int64_t i = 0; i < ldo; i++) out[t * ldo + i] = x[t * ldx + s.order[i]];
      break;
    }
    case Kind::NORM:
      k.norm(team, s.full, x + s.first, ldx, rows, s.count, out + s.to.first, ldo);
      break;
    case Kind::ACTIVATE: k.activate(team, s.act, out, ldo, rows, ldo); break;
    case Kind::PLACE: {
      Range mine = team.part(rows);
      for (int64_t t = mine.begin; t < mine.end; t++) {
        const float* from = s.table + pass.positions[t] * ldo;
        for (int64_t i = 0; i < ldo; i++) out[t * ldo + i] += from[i];
      }
      break;
    }
    case Kind::LINEAR: linear(team, s, rows, adapted); break;
    case Kind::PARTS:
      multiply_parts(team, s.parts, x, ldx, s.from, rows, out, ldo, s.to, scratch_);
      break;
    case Kind::TURN: k.turn(team, pass, s.rotary, s.count, x, ldx, s.from, out, ldo, s.to); break;
    case Kind::EXPERTS:
      k.experts(team, *s.experts, s.norm, x, ldx, rows, s.add, out, ldo, scratch_);
      break;
    case Kind::APPEND: k.append(team, pass, s.heads, s.rotary, out, ldo, s.kv); break;
    case Kind::ATTEND: k.attend(team, pass, s.heads, x, ldx, s.kv, out, ldo, scratch_); break;
    case Kind::REDUCE: s.meeting->sum(team, x, out, rows * ldo, s.add); break;
  }
}

int64_t Tape::run(int threads, const Pass& pass, const int32_t* chosen, int64_t count,
                  float* result, const Adapted* adapted, const Adapted* adapted_chosen) {
  std::lock_guard<std::mutex> turn(turn_);
  if (!reserve(team_size(threads), pass, count, adapted)) return -1;
  auto body = [&](Team& team) {
    int64_t rows = pass.tokens;
    const Adapted* use = adapted;
    for (const Step& s : steps_) {
      if (s.kind == Kind::CHOOSE) rows = count, use = adapted_chosen;
      step(team, s, pass, rows, chosen, use);
      team.barrier();
    }
    const Step& last = steps_.back();
    Range mine = team.part(rows);
    int64_t w = width(last.out);
    if (!mine.empty())
      memcpy(result + mine.begin * w, at(last.out) + mine.begin * w,
             static_cast<size_t>((mine.end - mine.begin) * w) * 4);
  };
  parallel(threads, body);
  return chooses_ ? count : pass.tokens;
}

}  // namespace sgl
