// A decoder of one layer that is small enough to run some hundred times, and its logits on the reference backend.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "core/backend.h"
#include "reference/op_cases.h"
#include "reference/reference_backend.h"

namespace pumice::tiny {

// Sets an environment variable. The destructor restores the value that it had before.
class Environment {
 public:
  Environment(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Environment() { before_ ? ::setenv(name_.c_str(), before_->c_str(), 1) : ::unsetenv(name_.c_str()); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const std::string name_;
  std::optional<std::string> before_;
};

inline constexpr std::int32_t kVocab = 48, kWidth = 64, kHeadDim = 32, kHeads = 2, kRows = 40;

// Returns the decoder's program: embedding, norm, q, k and v, rope and store, attention, its output projection with the residual, a
// convolution, a scan, its output projection with the residual, the selected rows, the head.
inline Program program(KvFormat kv = KvFormat::f16) {
  Program p;
  p.name = "tiny";
  p.kv_format = kv;
  p.slots = {{Rows::tokens, kWidth},   {Rows::tokens, kWidth},   {Rows::tokens, 2 * kWidth}, {Rows::tokens, kWidth},
             {Rows::selected, kWidth}, {Rows::selected, kVocab}, {Rows::tokens, kWidth},     {Rows::tokens, kHeadDim}};
  p.caches = {{1, kHeadDim, kHeadDim}};
  constexpr std::int32_t kHalf = kHeadDim / 2;  // the scan has one head of keys, and two heads of values
  p.states = {{1, 2, kWidth}, {2, kHalf, kHalf}};
  const View h{0, 0, kWidth}, n{1, 0, kWidth}, qkv{2, 0, 2 * kWidth}, q{2, 0, kWidth}, k{2, kWidth, kHeadDim},
      v{2, kWidth + kHeadDim, kHeadDim};
  const View a{3, 0, kWidth}, last{4, 0, kWidth}, logits{5, 0, kVocab};
  const View c{6, 0, kWidth}, s{7, 0, kHeadDim};
  RopeTable rope;
  for (std::int32_t i = 0; i < kHeadDim / 2; ++i) rope.inv_freq.push_back(1.0f / static_cast<float>(1 << i));
  p.ops = {
      Embed{.out = h, .tokens = MatrixId{0}},
      Norm{.in = h, .out = n, .weight = VectorId{0}},
      Linear{.in = n, .out = qkv, .parts = {{MatrixId{1}}}},
      Rope{.x = q, .head_dim = kHeadDim, .table = rope},
      Rope{.x = k, .head_dim = kHeadDim, .table = rope},
      Store{.k = k, .v = v, .cache = CacheId{0}},
      Attend{
          .q = q, .out = a, .cache = CacheId{0}, .key_dim = kHeadDim, .value_dim = kHeadDim, .kv_heads = 1, .causal = true, .scale = 0.2f},
      Linear{.in = a, .out = h, .parts = {{MatrixId{2}}}, .residual = h},
      Conv{.in = h, .out = c, .taps = VectorId{1}, .width = 3, .activation = Activation::silu, .state = StateId{0}},
      Scan{.q = {6, 0, kHalf},
           .k = {6, kHalf, kHalf},
           .v = {6, kHeadDim, kHeadDim},
           .step = {1, 0, 2},
           .beta = {1, 2, 2},
           .out = s,
           .rate = VectorId{2},
           .key_heads = 1,
           .key_dim = kHalf,
           .value_dim = kHalf,
           .state = StateId{1}},
      Linear{.in = s, .out = h, .parts = {{MatrixId{4}}}, .residual = h},
      Select{.in = h, .out = last},
      Linear{.in = last, .out = logits, .parts = {{MatrixId{3}}}}};
  p.output = 5;
  return p;
}

inline Weights weights() {
  using cases::random_matrix;
  cases::Random random(7);
  return {.matrices = {random_matrix("embedding", Format::F32, kVocab, kWidth, 1), random_matrix("qkv", Format::F16, 2 * kWidth, kWidth, 2),
                       random_matrix("out", Format::F16, kWidth, kWidth, 3), random_matrix("head", Format::F16, kVocab, kWidth, 4),
                       random_matrix("scan out", Format::F16, kWidth, kHeadDim, 5)},
          .vectors = {{"norm", random.normals(kWidth, 0.2f, 1.0f)},
                      {"taps", random.normals(3 * kWidth, 0.5f)},
                      {"rate", random.normals(2, 0.1f, -0.5f)}}};
}

// Runs the decoder as a caller does: prefill() and then decode(). In between, the caches and states grow, and a
// page and a state are copied.
class Session {
 public:
  explicit Session(Backend& backend, KvFormat kv = KvFormat::f16)
      : weights_(backend.pack(weights(), {}, {}, Cancel{})),
        caches_(backend.make_caches(program(), kv)),
        program_(backend.prepare(program(kv), weights_, Compute::float32)),
        workspace_(backend.make_workspace(Crew::team)) {}

  std::vector<float> prefill(const Cancel& cancel = {}) {
    caches_->reserve(2);
    caches_->reserve_states(1);
    std::vector<std::int32_t> ids(kRows);
    for (std::int32_t i = 0; i < kRows; ++i) ids[static_cast<std::size_t>(i)] = i * 11 % kVocab;
    return run(ids, 0, {0, 1}, -1, cancel);
  }
  std::vector<float> decode() {
    caches_->reserve(5);
    caches_->copy_page(0, 4);
    caches_->reserve_states(3);
    std::vector<std::uint8_t> state(caches_->state_bytes());
    caches_->read_state(0, state.data());
    caches_->write_state(2, state.data());
    return run({17}, kRows, {4, 1}, 2, {});
  }
  std::vector<float> both() {
    std::vector<float> logits = prefill();
    const std::vector<float> more = decode();
    logits.insert(logits.end(), more.begin(), more.end());
    return logits;
  }

  DeviceWeights& device_weights() { return const_cast<DeviceWeights&>(*weights_); }
  CacheStore& caches() { return *caches_; }
  Workspace& workspace() { return *workspace_; }

 private:
  std::vector<float> run(const std::vector<std::int32_t>& ids, std::int32_t past, const std::vector<std::int32_t>& pages,
                         std::int32_t state, const Cancel& cancel) {
    const auto rows = static_cast<std::int32_t>(ids.size()), last = rows - 1;
    const SavedState saved{rows, state < 0 ? 0 : 1};
    const Segment segment{.rows = rows, .past = past, .pages = pages, .state = state, .saves = {&saved, 1}};
    std::vector<float> logits(kVocab);
    program_->run(*workspace_, caches_.get(), {.rows = rows, .ids = ids, .segments = {&segment, 1}, .selected = {&last, 1}},
                  {.out = logits}, cancel);
    return logits;
  }

  std::shared_ptr<const DeviceWeights> weights_;
  std::unique_ptr<CacheStore> caches_;
  std::shared_ptr<const Executable> program_;
  std::unique_ptr<Workspace> workspace_;
};

inline const std::vector<float>& truth() {
  static const std::vector<float> logits = [] {
    reference::ReferenceBackend reference;
    return Session(reference).both();
  }();
  return logits;
}
// The tolerance is for keys and values in f16.
inline bool right(const std::vector<float>& logits) { return cases::nmse(logits, truth(), 0) < 1e-6; }
inline bool right_end(const std::vector<float>& logits) { return cases::nmse(logits, {truth().begin() + kVocab, truth().end()}, 0) < 1e-6; }

}  // namespace pumice::tiny
