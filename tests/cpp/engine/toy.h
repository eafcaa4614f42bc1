// A toy model whose answers are known. The hidden state of a token is a hash of all tokens up to it, which the model reads from the cache
// pages. So a wrong page, an overwritten page or a skipped token changes every later token. next_token() computes the right token from the
// ids alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"
#include "engine/runtime.h"
#include "engine/scheduler.h"
#include "patience.h"

namespace pumice::engine::toy {

inline constexpr std::int32_t kVocab = 211, kWidth = 2;
// An encoder gives NaN for a text with this token. If Seen::poisonous is set, a decoder gives NaN for a prompt that ends in it.
inline constexpr std::int32_t kPoison = 210;

inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
inline std::uint64_t extend(std::uint64_t state, std::int32_t id) { return mix(state * 31 + static_cast<std::uint32_t>(id) + 1); }
inline float low(std::uint64_t state) { return static_cast<float>(state & 0xffffff); }
inline float high(std::uint64_t state) { return static_cast<float>((state >> 24) & 0xffffff); }
inline float logit(float low, float high, std::int32_t id) {
  const std::uint64_t h =
      mix(static_cast<std::uint64_t>(low) << 24 ^ static_cast<std::uint64_t>(high) ^ (static_cast<std::uint64_t>(id) << 48));
  return static_cast<float>(h >> 40) / static_cast<float>(1 << 21);  // in [0, 8)
}

inline std::vector<float> logits_after(std::span<const std::int32_t> ids) {
  std::uint64_t state = 0;
  for (const std::int32_t id : ids) state = extend(state, id);
  std::vector<float> row(kVocab);
  for (std::int32_t v = 0; v < kVocab; ++v) row[v] = logit(low(state), high(state), v);
  return row;
}
inline std::int32_t next_token(std::span<const std::int32_t> ids) {
  const auto row = logits_after(ids);
  return static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}
inline std::vector<std::int32_t> continuation(std::vector<std::int32_t> ids, std::size_t count) {
  const std::size_t prompt = ids.size();
  while (ids.size() < prompt + count) ids.push_back(next_token(ids));
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
}
inline std::vector<std::int32_t> text(std::uint64_t seed, std::size_t length) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < length; ++i) ids.push_back(static_cast<std::int32_t>(mix(seed * 1000003 + i) % (kVocab - 1)));
  return ids;
}

class Store final : public CacheStore {
 public:
  void reserve(std::int32_t pages) override {
    if (pages > refuse_above) fail(ErrorKind::out_of_memory, "no more");
    while (count_ < pages) cells_[count_++].assign(kPageTokens, -77);
  }
  void copy_page(std::int32_t from, std::int32_t to) override {
    cells_[from].at(0);
    cells_[to] = cells_[from];
    ++copies;
  }
  void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) override {
    for (std::size_t i = 0; i < pages.size(); ++i) std::memcpy(out + i * stride, cells_[pages[i]].data(), kPageTokens * 4);
  }
  void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) override {
    for (std::size_t i = 0; i < pages.size(); ++i) std::memcpy(cells_[pages[i]].data(), in + i * stride, kPageTokens * 4);
  }
  std::uint64_t page_bytes() const override { return 1000; }

  void reserve_states(std::int32_t states) override {
    if (states > refuse_states_above) fail(ErrorKind::out_of_memory, "no more");
    while (state_count_ < states) states_[state_count_++] = 0xdead;
  }
  void read_state(std::int32_t state, std::uint8_t* out) override { std::memcpy(out, &states_[state], sizeof(std::uint64_t)); }
  void write_state(std::int32_t state, const std::uint8_t* in) override { std::memcpy(&states_[state], in, sizeof(std::uint64_t)); }
  std::uint64_t state_bytes() const override { return recurrent ? 8 : 0; }
  std::uint64_t& state(std::int32_t number) { return states_.at(static_cast<std::size_t>(number)); }
  const bool recurrent = false;
  explicit Store(bool recurrent) : recurrent(recurrent) {}
  std::int32_t& cell(std::span<const std::int32_t> pages, std::int32_t position) {
    return cells_[pages[position / kPageTokens]].at(position % kPageTokens);
  }
  std::int32_t refuse_above = 4096, refuse_states_above = 4096;
  std::atomic<int> copies{0};

 private:
  std::int32_t count_ = 0, state_count_ = 0;
  std::vector<std::uint64_t> states_ = std::vector<std::uint64_t>(4096);
  std::vector<std::vector<std::int32_t>> cells_ = std::vector<std::vector<std::int32_t>>(4096);
};

struct Space final : Workspace {
  explicit Space(Crew crew) : crew(crew) {}
  const Crew crew;
  std::atomic<bool> busy{false};
};

// Counters that a test can read, and settings and hooks by which it can intervene.
struct Seen {
  std::atomic<std::int64_t> runs{0}, rows{0}, most_rows{0}, head_rows{0}, most_head_rows{0}, solo{0}, team{0}, parallel{0};
  std::atomic<std::int64_t> held{INT64_MAX}, refused{0};  // held: rows of an encoder's batch that fit; refused: larger batches
  std::atomic<bool> poisonous{false};
  std::atomic<bool> log_probs_fail{false};  // true: log-probabilities fail for lack of memory
  std::function<void()> in_run;             // called in the middle of a body, when half of its segments are written
};

class Toy final : public Executable {
 public:
  enum class Kind { body, head, log_probs, pooled, tokens };
  Toy(Kind kind, std::shared_ptr<Seen> seen, std::vector<RopeTable> ropes = {})
      : kind_(kind), seen_(std::move(seen)), ropes_(std::move(ropes)) {}

  void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const override {
    auto& space = static_cast<Space&>(workspace);
    if (space.busy.exchange(true)) fail(ErrorKind::device, "two runs share a workspace");
    struct Free {
      Space& space;
      ~Free() { space.busy = false; }
    } free{space};
    ++(space.crew == Crew::solo ? seen_->solo : seen_->team);
    cancel.check();
    switch (kind_) {
      case Kind::body:
        return body(static_cast<Store&>(*caches), batch, io, cancel);
      case Kind::head:
        return head(batch, io);
      case Kind::log_probs:
        return log_probs(batch, io);
      case Kind::pooled:
      case Kind::tokens:
        return encode(batch, io, cancel);
    }
  }

 private:
  // Returns the number to store for an id. It is different at each stage of the ropes, as rotated keys are.
  std::int32_t turned(std::int32_t id, const Segment& s, std::int32_t position) const {
    for (const RopeTable& rope : ropes_) id += kVocab * static_cast<std::int32_t>(rope.stage(std::max(s.length, position + 1)));
    return id;
  }
  static void raise(std::atomic<std::int64_t>& to, std::int64_t value) {
    if (to < value) to = value;
  }

  void body(Store& store, const Batch& batch, const Io& io, const Cancel& cancel) const {
    ++seen_->runs;
    seen_->rows += batch.rows;
    raise(seen_->most_rows, batch.rows);
    if (io.out.size() != batch.selected.size() * kWidth || batch.ids.size() != static_cast<std::size_t>(batch.rows))
      fail(ErrorKind::device, "sizes");
    std::int32_t next = 0;
    for (const Segment& s : batch.segments) {
      if (s.first != next || s.pages.size() * kPageTokens < static_cast<std::size_t>(s.past + s.rows)) fail(ErrorKind::device, "segments");
      next += s.rows;
    }
    if (next != batch.rows) fail(ErrorKind::device, "segments do not cover the rows");
    for (std::size_t i = 0; i < batch.segments.size(); ++i) {
      if (i == batch.segments.size() / 2 && seen_->in_run) {
        seen_->in_run();
        for (const Segment& s : batch.segments) store.cell(s.pages, s.past) = -99;  // if the run is stopped now, its rows are invalid
        cancel.check();
      }
      const Segment& s = batch.segments[i];
      for (std::int32_t r = 0; r < s.rows; ++r) store.cell(s.pages, s.past + r) = turned(batch.ids[s.first + r], s, s.past + r);
    }
    if (seen_->in_run)
      for (const Segment& s : batch.segments)
        for (std::int32_t r = 0; r < s.rows; ++r) store.cell(s.pages, s.past + r) = turned(batch.ids[s.first + r], s, s.past + r);
    std::size_t out = 0;
    for (const Segment& s : batch.segments) {
      std::uint64_t state = 0;
      std::span<const SavedState> saves = s.saves;
      if (store.recurrent && (s.state >= 0) != (s.past > 0)) fail(ErrorKind::device, "a past without a state, or a state without a past");
      for (std::int32_t p = 0; p < s.past + s.rows; ++p) {
        if (store.recurrent && p == s.past && p > 0 && store.state(s.state) != state)
          fail(ErrorKind::device, "the state is of another text");
        state = extend(state, store.cell(s.pages, p));
        if (!saves.empty() && saves.front().rows == p + 1 - s.past) {
          if (store.recurrent) store.state(saves.front().state) = state;
          saves = saves.subspan(1);
        }
        if (p < s.past || out >= batch.selected.size() || batch.selected[out] != s.first + p - s.past) continue;
        const bool poisoned = seen_->poisonous && p + 1 == s.length && batch.ids[s.first + p - s.past] == kPoison;
        io.out[out * kWidth] = poisoned ? std::nanf("") : low(state);
        io.out[out * kWidth + 1] = high(state);
        ++out;
      }
    }
    if (out != batch.selected.size()) fail(ErrorKind::device, "selected rows are not ascending or not there");
  }

  void head(const Batch& batch, const Io& io) const {
    seen_->head_rows += batch.rows;
    raise(seen_->most_head_rows, batch.rows);
    if (io.out.size() != static_cast<std::size_t>(batch.rows) * kVocab) fail(ErrorKind::device, "logits");
    for (std::int32_t r = 0; r < batch.rows; ++r)
      for (std::int32_t v = 0; v < kVocab; ++v)
        io.out[r * kVocab + v] = std::isnan(io.in[r * kWidth]) ? io.in[r * kWidth] : logit(io.in[r * kWidth], io.in[r * kWidth + 1], v);
  }

  void log_probs(const Batch& batch, const Io& io) const {
    if (seen_->log_probs_fail) fail(ErrorKind::out_of_device_memory, "toy: no memory for log-probabilities");
    raise(seen_->most_head_rows, batch.rows);
    for (std::int32_t r = 0; r < batch.rows; ++r) {
      double total = 0;
      for (std::int32_t v = 0; v < kVocab; ++v) total += std::exp(logit(io.in[r * kWidth], io.in[r * kWidth + 1], v));
      io.out[r] = static_cast<float>(logit(io.in[r * kWidth], io.in[r * kWidth + 1], batch.ids[r]) - std::log(total));
    }
  }

  void encode(const Batch& batch, const Io& io, const Cancel& cancel) const {
    if (batch.rows > seen_->held) {
      ++seen_->refused;
      fail(ErrorKind::out_of_device_memory, "toy: ", batch.rows, " rows are too many");
    }
    raise(seen_->most_rows, batch.rows);
    if (seen_->in_run) seen_->in_run();
    cancel.check();
    for (std::size_t i = 0; i < batch.segments.size(); ++i) {
      const Segment& s = batch.segments[i];
      std::uint64_t state = 0;
      for (std::int32_t r = s.first; r < s.first + s.rows; ++r) {
        state = extend(state, batch.ids[r] + (batch.types.empty() ? 0 : 1000 * batch.types[r]));
        float* to = kind_ == Kind::tokens ? &io.out[r * kWidth] : &io.out[i * kWidth];
        to[0] = batch.ids[r] == kPoison ? std::nanf("") : low(state) + 1;
        to[1] = high(state);
      }
    }
  }

  const Kind kind_;
  const std::shared_ptr<Seen> seen_;
  const std::vector<RopeTable> ropes_;
};

class Device final : public Backend {
 public:
  explicit Device(std::shared_ptr<Seen> seen, int workers = 2) : seen_(std::move(seen)), workers_(workers) {}
  DeviceInfo info() const override { return {.id = "toy"}; }
  std::shared_ptr<const DeviceWeights> pack(const Weights&, std::span<const Program* const>, const Progress&, const Cancel&,
                                            std::uint64_t) override {
    return nullptr;
  }
  std::unique_ptr<CacheStore> make_caches(const Program&, KvFormat) override { return std::make_unique<Store>(false); }
  void foresee(const Program&, const Weights&, Compute, const Cancel&) override {}
  std::shared_ptr<const Executable> prepare(Program, std::shared_ptr<const DeviceWeights>, Compute, const Cancel&) override {
    return nullptr;
  }
  std::unique_ptr<Workspace> make_workspace(Crew crew) override { return std::make_unique<Space>(crew); }
  Cost cost(const Program&, const WeightShapes&, KvFormat, std::int64_t) const override { return {}; }
  int workers() const override { return workers_; }
  std::int64_t batch_rows() const override { return 144; }
  void parallel(std::int64_t jobs, const std::function<void(std::int64_t, int)>& job, const Cancel& cancel) override {
    const std::lock_guard turn(turn_);
    ++seen_->parallel;
    std::atomic<std::int64_t> next{0};
    std::exception_ptr error;
    std::mutex lock;
    const auto work = [&](int worker) {
      try {
        for (std::int64_t i; (i = next++) < jobs;) {
          cancel.check();
          job(i, worker);
        }
      } catch (...) {
        const std::lock_guard guard(lock);
        if (!error) error = std::current_exception();
        next = jobs;
      }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    if (error) std::rethrow_exception(error);
  }

 private:
  const std::shared_ptr<Seen> seen_;
  const int workers_;
  std::mutex turn_;
};

// Waits until no page is in use, because a step may still run. Returns the number of pages in use.
inline std::int64_t leaked(const PagePool& pool) {
  patience::wait_until([&] { return pool.stats().pages_in_use == 0; });
  pool.self_check();
  return pool.stats().pages_in_use;
}

// Waits for the news of `steps` steps and takes the news, as the caller of a request does.
inline std::vector<News> advance(Request& request, std::int32_t steps, double max_ms = 1e9) {
  request.wait(steps, max_ms);
  return request.take();
}

// With this environment variable, toy decoders have states: every test of the scheduler must hold for them too.
inline bool states_by_default() { return std::getenv("PUMICE_TOY_STATES") != nullptr; }

// A toy decoder with a budget of `pages` pages, or a toy encoder, which has no pages.
struct Model {
  explicit Model(std::int64_t pages = 1000, std::int32_t n_ctx = 4096, Toy::Kind kind = Toy::Kind::body, int workers = 2,
                 std::vector<RopeTable> turning = {}, bool recurrent = states_by_default())
      : ropes(std::move(turning)) {
    auto device = std::make_shared<Device>(seen, workers);
    const auto stage = [&](Toy::Kind k, std::int32_t in, std::int32_t out) {
      return Pipeline::Stage{device.get(), 0, std::make_shared<Toy>(k, seen, ropes), in, out};
    };
    std::vector<Pipeline::Stage> body{stage(kind, 0, kWidth)};
    Pipeline::Stage head{}, log_probs{};
    if (kind == Toy::Kind::body) {
      head = stage(Toy::Kind::head, kWidth, kVocab);
      log_probs = stage(Toy::Kind::log_probs, kWidth, 1);
      auto owned = std::make_unique<Store>(recurrent);
      store = owned.get();
      std::vector<std::unique_ptr<CacheStore>> stores;
      stores.push_back(std::move(owned));
      pool = std::make_unique<PagePool>(CacheSet(std::move(stores)),
                                        CacheUnits{store->page_bytes(), store->state_bytes()}.bytes_for(static_cast<std::uint64_t>(pages)));
    }
    pipeline = std::make_unique<Pipeline>(std::vector<std::shared_ptr<Backend>>{device}, std::move(body), std::move(head),
                                          std::move(log_probs), Pipeline::Stage{});
    runtime = std::make_shared<Runtime>(*pipeline, pool.get(), n_ctx, kVocab, 2, ropes);
    scheduler = std::make_unique<Scheduler>(*runtime);
  }
  // Returns the number of pages that are still in use after the running step. It is 0 if all pages are free or cached.
  std::int64_t leaked() const { return toy::leaked(*pool); }

  const std::vector<RopeTable> ropes;
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  Store* store = nullptr;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<Pipeline> pipeline;
  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<Scheduler> scheduler;
  Cancel cancel;
};

template <class Call>
ErrorKind error_of(Call&& call, std::string* message = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (message) *message = error.what();
    return error.kind();
  }
  throw std::runtime_error("no error came");
}

}  // namespace pumice::engine::toy
