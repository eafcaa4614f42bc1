// The tokens chosen from a device's ranking (Top) must be the same as those chosen from whole rows of logits on the same device.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>

#include "cpu/cpu_backend.h"
#include "engine/model.h"
#include "engine/toy.h"
#include "model/tiny.h"
#if PUMICE_VULKAN
#include "vulkan/vulkan_backend.h"
#endif

namespace pumice::engine::top_test {
namespace {

namespace tiny = model::tiny;
using Ids = std::vector<std::int32_t>;

// Wraps a device. ranks() returns what the test wants, and rows() returns how many rows a program has computed.
class Bus final : public Backend {
 public:
  Bus(std::shared_ptr<Backend> inner, bool slow) : inner_(std::move(inner)), slow_(slow) {}
  std::int32_t ranks(const MatrixShape&, std::uint64_t) const override { return slow_ ? kMostTop : 0; }
  std::int64_t rows(const std::string& program) const {
    const std::lock_guard lock(mutex_);
    const auto known = rows_.find(program);
    return known == rows_.end() ? 0 : known->second;
  }

  DeviceInfo info() const override { return inner_->info(); }
  std::shared_ptr<const DeviceWeights> pack(const Weights& weights, std::span<const Program* const> programs, const Progress& progress,
                                            const Cancel& cancel, std::uint64_t expert_bytes) override {
    return inner_->pack(weights, programs, progress, cancel, expert_bytes);
  }
  std::unique_ptr<CacheStore> make_caches(const Program& program, KvFormat format) override { return inner_->make_caches(program, format); }
  void foresee(const Program& program, const Weights& weights, Compute compute, const Cancel& cancel) override {
    inner_->foresee(program, weights, compute, cancel);
  }
  std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                            const Cancel& cancel) override {
    const std::string name = program.name;
    return std::make_shared<Counted>(*this, name, inner_->prepare(std::move(program), std::move(weights), compute, cancel));
  }
  std::unique_ptr<Workspace> make_workspace(Crew crew) override { return inner_->make_workspace(crew); }
  Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const override {
    return inner_->cost(program, weights, format, rows);
  }
  int workers() const override { return inner_->workers(); }
  std::int64_t batch_rows() const override { return inner_->batch_rows(); }
  void parallel(std::int64_t jobs, const std::function<void(std::int64_t, int)>& job, const Cancel& cancel) override {
    inner_->parallel(jobs, job, cancel);
  }

 private:
  struct Counted final : Executable {
    Counted(Bus& bus, std::string name, std::shared_ptr<const Executable> inner)
        : bus(bus), name(std::move(name)), inner(std::move(inner)) {}
    void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const override {
      inner->run(workspace, caches, batch, io, cancel);
      const std::lock_guard lock(bus.mutex_);
      bus.rows_[name] += batch.rows;
    }
    Bus& bus;
    const std::string name;
    const std::shared_ptr<const Executable> inner;
  };
  const std::shared_ptr<Backend> inner_;
  const bool slow_;
  mutable std::mutex mutex_;
  std::map<std::string, std::int64_t> rows_;
};

struct Loaded {
  Loaded(const std::string& name, const std::shared_ptr<Backend>& device, bool slow)
      : bus(std::make_shared<Bus>(device, slow)),
        model(Model::load_on(std::vector<std::shared_ptr<Backend>>{bus}, tiny::open(tiny::make(name, 2), folder),
                             {.kv_format = KvFormat::f32, .compute = Compute::float32}, {}, cancel)) {}

  std::vector<Ids> generate(const std::vector<Ids>& prompts, const GenerateParams& params) const {
    const auto g = model->scheduler().request(prompts, params);
    std::vector<Ids> results(static_cast<std::size_t>(g->sequences()));
    while (!g->done()) {
      for (const News& news : toy::advance(*g, 7)) {
        auto& ids = results.at(static_cast<std::size_t>(news.sequence));
        ids.insert(ids.end(), news.ids.begin(), news.ids.end());
      }
    }
    return results;
  }

  Cancel cancel;
  tiny::TempFolder folder;
  std::shared_ptr<Bus> bus;
  std::shared_ptr<Model> model;
};

void check(const std::shared_ptr<Backend>& device, const std::string& name, std::int64_t tokens) {
  const Loaded ranked(name, device, true), whole(name, device, false);
  std::vector<Ids> prompts;
  for (std::uint64_t p = 0; p < 3; ++p) {
    Ids& ids = prompts.emplace_back();
    for (std::size_t i = 0; i < 1 + 3 * p; ++i) ids.push_back(static_cast<std::int32_t>(toy::mix(p * 1000 + i) % tiny::kVocab));
  }
  const auto tokens_of = [&](const char* what, std::int32_t n, auto&& set, bool from_top, std::vector<Ids> bad_words = {},
                             std::int64_t least = 0) {
    SCOPED_TRACE(name + ", " + what);
    GenerateParams params{.max_new_tokens = tokens, .min_new_tokens = least, .n = n};
    if (least > 0) params.eos_ids = {1, 2, 30, 31, 32};
    params.bad_words = std::move(bad_words);
    params.sampling.seed = 17;
    set(params.sampling);
    const std::int64_t tops = ranked.bus->rows("largest logits"), heads = ranked.bus->rows("head");
    const auto expected = whole.generate(prompts, params), found = ranked.generate(prompts, params);
    EXPECT_EQ(found, expected);
    EXPECT_EQ(ranked.bus->rows("largest logits") > tops, from_top);
    if (!from_top) {
      EXPECT_GT(ranked.bus->rows("head"), heads);
    }
    return std::pair{ranked.bus->rows("largest logits") - tops, ranked.bus->rows("head") - heads};
  };
  EXPECT_EQ(tokens_of("greedy", 1, [](auto&) {}, true).second, 0);
  tokens_of("greedy, bias", 2, [](auto& p) { p.logit_bias = {{3, 2.0f}, {40, -std::numeric_limits<float>::infinity()}, {3, 0.5f}}; }, true);
  tokens_of("top_k", 3, [](auto& p) { p.temperature = 1.5f, p.top_k = 5; }, true);
  tokens_of(
      "all filters", 2,
      [](auto& p) { p.temperature = 2, p.top_k = 30, p.typical_p = 0.95f, p.top_p = 0.9f, p.min_p = 0.01f, p.presence_penalty = 0.5f; },
      true);
  tokens_of("top_p", 1, [](auto& p) { p.temperature = 1, p.top_p = 0.9f; }, false);
  tokens_of("log-probabilities", 1, [](auto& p) { p.logprobs = 2; }, false);
  tokens_of("filters", 2, [](auto& p) { p.temperature = 1.5f, p.top_k = 7; }, true, {{3}, {17, 4}, {40}}, 12);
  tokens_of("filters, greedy", 1, [](auto& p) { p.logit_bias = {{5, 1.0f}}, p.presence_penalty = 0.1f; }, true, {{3}, {17}, {40}, {41}}, 0);
  tokens_of("filters, top_p", 1, [](auto& p) { p.temperature = 1, p.top_p = 0.9f; }, false, {{3}}, 3);
  // The more tokens are generated, the more ids are penalised. When Top cannot report so many ids, whole rows must be read instead.
  const auto [tops, heads] = tokens_of("penalties", 1, [](auto& p) { p.temperature = 3, p.top_k = 40, p.repetition_penalty = 1.3f; }, true);
  EXPECT_GT(tops, 0);
  EXPECT_GT(heads, 0);
  EXPECT_EQ(whole.bus->rows("largest logits"), 0);
}

TEST(Top, OnTheCpuTokensAreThoseOfWholeRows) {
  const auto device = cpu::make_backend(2);
  for (const char* name : {"llama", "gemma3"}) check(device, name, 40);
}

TEST(Top, IdsThatAreTooManyDoNotFit) {
  ChangedIds ids(3);
  for (const std::int32_t id : {5, 1, 5, 3, 1}) ids.add(id);
  EXPECT_TRUE(ids.fit());
  EXPECT_EQ(Ids(ids.ids().begin(), ids.ids().end()), (Ids{1, 3, 5}));
  ids.add(2);
  EXPECT_FALSE(ids.fit());
  ids.add(7);
  EXPECT_FALSE(ids.fit());
}

#if PUMICE_VULKAN
TEST(Top, OnVulkanTokensAreThoseOfWholeRows) {
  const char* index = std::getenv("PUMICE_TEST_VULKAN");
  check(vulkan::make_backend(index != nullptr ? std::strtoul(index, nullptr, 10) : 0), "llama", 24);
}
#endif

}  // namespace
}  // namespace pumice::engine::top_test
