// Tiny decoders and encoders whose layers are divided, in various ways, between the CPU backend and the reference backend. Results must be
// near those of one device.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <random>

#include "core/checked.h"
#include "cpu/cpu_backend.h"
#include "engine/embedder.h"
#include "engine/model.h"
#include "engine/scorer.h"
#include "engine/toy.h"
#include "model/tiny.h"
#include "reference/reference_backend.h"

namespace pumice::engine::split_test {
namespace {

namespace tiny = model::tiny;
using Ids = std::vector<std::int32_t>;
using Backends = std::vector<std::shared_ptr<Backend>>;

std::shared_ptr<Backend> cpu() {
  static const std::shared_ptr<Backend> backend = cpu::make_backend(2);
  return backend;
}
DeviceInfo with_memory(DeviceInfo info) {
  info.memory_total = info.memory_free = std::uint64_t{1} << 32;
  return info;
}

// The reference backend with hooks before and after each run. It can claim to lack memory for runs of many rows.
class Second final : public reference::ReferenceBackend {
 public:
  DeviceInfo info() const override { return with_memory(ReferenceBackend::info()); }
  std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                            const Cancel& cancel) override {
    return std::make_shared<Watched>(ReferenceBackend::prepare(std::move(program), std::move(weights), compute, cancel), this);
  }
  std::function<void()> before, after;  // called before and after a run
  std::atomic<int> runs{0};
  std::int32_t holds = INT32_MAX;  // the maximum number of rows for which it claims to have memory
  std::int32_t largest = 0;        // the largest number of rows in a run that it had memory for

 private:
  struct Watched final : Executable {
    Watched(std::shared_ptr<const Executable> inner, Second* device) : inner(std::move(inner)), device(device) {}
    void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const override {
      ++device->runs;
      if (device->before) device->before();
      if (!batch.segments.empty()) {
        if (batch.rows > device->holds) fail(ErrorKind::out_of_device_memory, batch.rows, " rows do not fit");
        device->largest = std::max(device->largest, batch.rows);
      }
      inner->run(workspace, caches, batch, io, cancel);
      if (device->after) device->after();
    }
    const std::shared_ptr<const Executable> inner;
    Second* const device;
  };
};

struct Loaded {
  Loaded(const std::string& name, std::size_t layers, Backends backends, std::optional<std::uint64_t> kv_budget = {})
      : model(Model::load_on(std::move(backends), tiny::open(tiny::make(name, layers), folder),
                             {.kv_format = KvFormat::f32, .kv_budget = kv_budget, .compute = Compute::float32}, {}, cancel)) {}
  PagePool& pool() const { return *model->decoder().pages; }
  std::int64_t leaked() const { return toy::leaked(pool()); }

  Cancel cancel;
  tiny::TempFolder folder;
  std::shared_ptr<Model> model;
};

Ids text(std::uint64_t seed, std::size_t length) {
  Ids ids;
  for (std::size_t i = 0; i < length; ++i) ids.push_back(static_cast<std::int32_t>(toy::mix(seed * 1000003 + i) % tiny::kVocab));
  return ids;
}
std::vector<float> last_logits(const Loaded& m, const Ids& ids) {
  std::vector<float> row(tiny::kVocab);
  logits(m.model->scheduler(), ids, false, row, m.cancel);
  return row;
}
std::vector<float> all_logits(const Loaded& m, const Ids& ids) {
  std::vector<float> rows(ids.size() * tiny::kVocab);
  logits(m.model->scheduler(), ids, true, rows, m.cancel);
  return rows;
}
std::vector<Ids> generate(const Loaded& m, const std::vector<Ids>& prompts, const GenerateParams& params) {
  const auto g = m.model->scheduler().request(prompts, params);
  std::vector<Ids> results(static_cast<std::size_t>(g->sequences()));
  while (!g->done()) {
    for (const News& news : toy::advance(*g, 7)) {
      auto& ids = results.at(static_cast<std::size_t>(news.sequence));
      ids.insert(ids.end(), news.ids.begin(), news.ids.end());
    }
  }
  return results;
}
std::vector<Ids> generate(const Loaded& m, const std::vector<Ids>& prompts, std::int64_t tokens) {
  return generate(m, prompts, GenerateParams{.max_new_tokens = tokens});
}

// The logits of these models are between -5 and 5. Float32 and float64 differ by about 1e-6 of that.
void expect_near(const std::vector<float>& found, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(found[i] - expected[i])));
    if (!(std::abs(found[i]) < 1e30f)) worst = INFINITY;
    largest = std::max(largest, static_cast<double>(std::abs(expected[i])));
  }
  EXPECT_GT(largest, 0.1) << what;
  EXPECT_LT(worst, 2e-5 * largest) << what;
}

// Returns the devices for a split in which `cut` layers lie on `first` and the others on `second`. The list has one entry for each layer,
// so each entry gets one layer.
Backends cut_at(std::size_t cut, std::size_t layers, const std::shared_ptr<Backend>& first, const std::shared_ptr<Backend>& second) {
  Backends backends;
  for (std::size_t i = 0; i < layers; ++i) backends.push_back(i < cut ? first : second);
  return backends;
}

TEST(Rows, ADeviceThatHoldsFewGetsFewAndSaysTheSame) {
  std::vector<Ids> prompts = {text(1, 75), text(2, 20)};
  for (std::uint64_t i = 0; i < 40; ++i) prompts.push_back(text(3 + i, 1 + i % 7));
  const auto second = std::make_shared<Second>();
  std::vector<std::vector<Ids>> answers;
  std::vector<std::vector<float>> rows;
  for (const std::int32_t holds : {INT32_MAX, 37, 5, 1}) {
    second->holds = holds;
    second->largest = 0;
    const Loaded m("mistral", 2, {cpu(), second});
    answers.push_back(generate(m, prompts, 9));
    rows.push_back(all_logits(m, prompts[0]));
    rows.back().resize(rows.back().size() + prompts[0].size() - 1);
    score(m.model->scheduler(), prompts[0], std::span(rows.back()).last(prompts[0].size() - 1), m.cancel);
    EXPECT_LE(second->largest, holds);
    EXPECT_GE(second->largest, std::min(holds, 64) / 2);
    EXPECT_EQ(m.leaked(), 0);
  }
  for (std::size_t i = 1; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i], answers[0]);
    EXPECT_EQ(rows[i], rows[0]);
  }
}

TEST(Rows, ADeviceThatHoldsNoneIsAnError) {
  const auto second = std::make_shared<Second>();
  const Loaded m("llama", 2, {cpu(), second});
  const auto expected = generate(m, {text(1, 50)}, 5);
  second->holds = 0;
  EXPECT_THROW(generate(m, {text(2, 50)}, 5), Error);
  EXPECT_THROW(all_logits(m, text(2, 50)), Error);
  EXPECT_EQ(m.leaked(), 0);
  second->holds = INT32_MAX;
  EXPECT_EQ(generate(m, {text(1, 50)}, 5), expected);
}

TEST(Rows, ManySequencesTakeTurns) {
  const auto second = std::make_shared<Second>();
  const Loaded m("llama", 2, {cpu(), second}, 1 << 26);
  const Ids prompt = text(1, 3);
  const auto answers = [&](std::int32_t n) {
    return generate(m, {prompt}, GenerateParams{.max_new_tokens = 3, .n = n, .sampling = {.temperature = 1, .seed = 7}});
  };
  const auto many = answers(kPlannedRows + 90);
  EXPECT_LE(second->largest, kPlannedRows);
  EXPECT_GT(second->largest, kPlannedRows / 2);
  const auto few = answers(20);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  for (const Ids& ids : many) EXPECT_EQ(ids.size(), 3u);
}

TEST(Split, AtEveryLayerLogitsAreThoseOfOneDevice) {
  for (const char* name : {"llama", "mistral", "gemma3", "gemma4", "llama.gguf", "gemma3.gguf"}) {
    for (const std::size_t layers : {1, 2, 3, 5}) {
      const Loaded whole(name, layers, {cpu()});
      const Ids ids = text(1, 75), other = text(2, 140);  // longer than windows of 24, pages of 32 and (`other`) steps of 128
      const auto expected = all_logits(whole, ids), expected_last = last_logits(whole, other);
      std::vector<float> expected_scores(ids.size() - 1), scores(ids.size() - 1);
      score(whole.model->scheduler(), ids, expected_scores, whole.cancel);
      const auto check = [&](Backends backends, const std::string& what) {
        const Loaded split(name, layers, std::move(backends));
        expect_near(all_logits(split, ids), expected, what);
        expect_near(last_logits(split, other), expected_last, what);
        score(split.model->scheduler(), ids, scores, split.cancel);
        expect_near(scores, expected_scores, what);
        EXPECT_EQ(split.leaked(), 0);
      };
      const auto second = std::make_shared<Second>();
      for (std::size_t cut = 0; cut <= layers; ++cut) {
        const std::string what = str(name, ", ", cut, " of ", layers);
        check(cut_at(cut, layers, cpu(), second), what + ", CPU first");
        if (layers > 1) check(cut_at(cut, layers, second, cpu()), what + ", CPU last");
      }
      check({cpu(), second}, str(name, ", halves of ", layers));
      check({second, cpu()}, str(name, ", halves of ", layers, ", CPU last"));
      if (layers == 5) check({cpu(), second, cpu()}, str(name, ", there and back"));
    }
  }
}

TEST(Split, StagesAndMemoryAreCounted) {
  const auto second = std::make_shared<Second>();
  const Loaded m("llama", 5, {cpu(), second, cpu()});
  const Placement& p = m.model->placement();
  ASSERT_EQ(p.stages.size(), 3u);
  std::size_t next = 0;
  for (const StagePlan& stage : p.stages) {
    EXPECT_EQ(stage.first, next);
    next = stage.last;
  }
  EXPECT_EQ(next, 5u);
  ASSERT_EQ(p.rows.size(), 7u);
  EXPECT_EQ(p.rows[1].device, "cpu");
  EXPECT_EQ(p.rows[2].device, "reference");
  EXPECT_EQ(p.rows[6].device, "cpu");
  EXPECT_EQ(p.kv_page, m.pool().stats().page_bytes);  // the plan must foresee the size that was allocated
  EXPECT_TRUE(p.notes.empty());

  // With more devices than layers, the second device has nothing to do, and a note must say so.
  const Loaded narrow("llama", 1, {cpu(), second});
  ASSERT_EQ(narrow.model->placement().stages.size(), 1u);
  ASSERT_EQ(narrow.model->placement().notes.size(), 1u);
  EXPECT_NE(narrow.model->placement().notes[0].find("reference is idle"), std::string::npos);
}

// Gemma 4's layers from 2 on read keys and values of layers 0 and 1. Every device with such layers keeps caches of its own for them, and
// the plan must count all of these.
TEST(Split, SharedKeysAndValuesAreCountedWhereTheyAreKept) {
  const auto second = std::make_shared<Second>();
  const Loaded whole("gemma4", 6, {cpu()});
  const std::uint64_t page = whole.pool().stats().page_bytes;
  EXPECT_EQ(whole.model->placement().kv_page, page);
  for (const PlacementRow& row : whole.model->placement().rows) {
    const bool own = row.name == "layer 0" || row.name == "layer 1";
    EXPECT_EQ(row.kv > 0, own) << row.name;
  }
  for (const Backends& backends : {Backends{cpu(), second}, Backends{cpu(), second, cpu()}, cut_at(3, 6, cpu(), second)}) {
    const Loaded split("gemma4", 6, backends);
    const Placement& p = split.model->placement();
    EXPECT_EQ(p.kv_page, split.pool().stats().page_bytes) << backends.size();
    EXPECT_GT(p.kv_page, page) << backends.size();
    std::uint64_t rows = 0;
    for (const PlacementRow& row : p.rows) rows += row.kv;
    EXPECT_EQ(rows, p.kv_page * static_cast<std::uint64_t>(ceil_div(p.n_ctx, kPageTokens))) << backends.size();
  }
}

TEST(Split, RowsBetweenLayersAreThoseOfOneDevice) {
  const Ids ids = text(3, 75);
  const std::vector<std::int32_t> layers = {0, 1, 2, 3, 4, 5};
  for (const char* name : {"gemma3", "gemma4"}) {
    const auto rows = [&](Backends backends) {
      const Loaded m(name, 5, std::move(backends));
      std::vector<float> out(layers.size() * ids.size() * tiny::kHidden);
      m.model->inspector().hidden_states(ids, layers, out, m.cancel);
      return out;
    };
    const auto expected = rows({cpu()}), second = rows({cpu(), std::make_shared<Second>()});
    const std::size_t one = ids.size() * tiny::kHidden;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const auto of = [&](const std::vector<float>& all) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(layer * one);
        return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(one));
      };
      expect_near(of(second), of(expected), str(name, ", rows of layer ", layer));
    }
  }
}

TEST(Split, GenerationIsThatOfOneDevice) {
  const std::vector<Ids> prompts = {text(1, 5), text(2, 33), text(3, 70), text(1, 40)};
  for (const char* name : {"llama", "gemma3", "gemma4"}) {
    const Loaded whole(name, 4, {cpu()});
    const auto expected = generate(whole, prompts, 40);
    const auto second = std::make_shared<Second>();
    for (const Backends& backends : {Backends{cpu(), second}, Backends{second, cpu()}, Backends{cpu(), second, cpu(), second}}) {
      const Loaded split(name, 4, backends);
      EXPECT_EQ(generate(split, prompts, 40), expected) << name;
      EXPECT_EQ(split.leaked(), 0);
    }
  }
}

TEST(Split, APrefixIsSharedOnBothSides) {
  const auto second = std::make_shared<Second>();
  struct Case {
    const char* name;
    Backends backends;
  };
  for (const auto& [name, backends] : {Case{"gemma3", {cpu(), second}}, Case{"gemma3", {second, cpu()}}, Case{"gemma4", {cpu(), second}},
                                       Case{"gemma4", {second, cpu()}}}) {
    const Ids first = text(1, 100);
    Ids longer = first;
    const Ids tail = text(9, 50);
    longer.resize(70);  // two pages and a part of the third, which must be copied on both devices
    longer.insert(longer.end(), tail.begin(), tail.end());
    const Loaded fresh(name, 4, backends), split(name, 4, backends);
    const auto expected = last_logits(fresh, longer);
    generate(split, {first}, 10);
    EXPECT_EQ(split.pool().cached_tokens(longer), 70);
    EXPECT_EQ(last_logits(split, longer), expected);  // the same bits
    EXPECT_EQ(generate(split, {longer}, 30), generate(fresh, {longer}, 30));
    EXPECT_GE(split.pool().stats().reused_tokens, 70u);
    // When one prompt is forked, its last page must be copied on both devices.
    GenerateParams params{.max_new_tokens = 20, .n = 3};
    params.sampling.temperature = 1;
    params.sampling.seed = 7;
    const auto sampled = [&](const Loaded& m) {
      const auto g = m.model->scheduler().request({first}, params);
      std::vector<Ids> results(3);
      while (!g->done()) {
        for (const News& news : toy::advance(*g, 5))
          results[static_cast<std::size_t>(news.sequence)].insert(results[static_cast<std::size_t>(news.sequence)].end(), news.ids.begin(),
                                                                  news.ids.end());
      }
      return results;
    };
    EXPECT_EQ(sampled(split), sampled(fresh));
    EXPECT_EQ(split.leaked(), 0);
  }
}

TEST(Split, PagesOfATightBudgetAreTakenAndComputedAgain) {
  const auto second = std::make_shared<Second>();
  std::vector<Ids> prompts;
  for (std::size_t i = 0; i < 9; ++i) prompts.push_back(text(i % 4, 20 + 17 * i));
  const Loaded roomy("llama", 3, {cpu(), second});
  const auto expected = generate(roomy, prompts, 30);
  EXPECT_EQ(roomy.pool().stats().pages_evicted, 0u);
  const Loaded tight("llama", 3, {cpu(), second}, 8 * roomy.model->placement().kv_page);
  EXPECT_EQ(generate(tight, prompts, 30), expected);
  EXPECT_GT(tight.pool().stats().pages_evicted, 0u);
  EXPECT_LE(tight.pool().stats().pages_reserved, 8);
  EXPECT_EQ(tight.leaked(), 0);
}

TEST(Split, CancelledInTheMiddleAndGoneOn) {
  const std::vector<Ids> prompts = {text(1, 150), text(2, 33)};
  for (const bool cpu_first : {true, false}) {
    const auto second = std::make_shared<Second>();
    const Loaded m("llama", 4, cpu_first ? Backends{cpu(), second} : Backends{second, cpu()});
    const auto expected = generate(Loaded("llama", 4, {cpu()}), prompts, 25);
    std::mt19937 random(3);
    std::atomic<int> cancelled{0};
    const auto maybe = [&] {
      if (random() % 4 != 0) return;
      ++cancelled;
      fail(ErrorKind::cancelled, "a step that is stopped is made again");
    };
    second->before = second->after = maybe;
    const auto results = generate(m, prompts, 25);
    EXPECT_GT(cancelled, 5);
    EXPECT_EQ(results, expected);
    EXPECT_EQ(m.leaked(), 0);
  }
}

TEST(Split, AnErrorOfTheSecondDeviceLeavesTheModelUsable) {
  for (const bool cpu_first : {true, false}) {
    for (const bool late : {false, true}) {
      const auto second = std::make_shared<Second>();
      const Loaded m("llama", 4, cpu_first ? Backends{cpu(), second} : Backends{second, cpu()});
      const Ids ids = text(5, 90);
      const auto expected = last_logits(Loaded("llama", 4, {cpu()}), ids);
      const auto expected_ids = generate(Loaded("llama", 4, {cpu()}), {ids}, 20);
      (late ? second->after : second->before) = [] { fail(ErrorKind::device_lost, "the cable was pulled"); };
      std::vector<float> row(tiny::kVocab), scores(ids.size() - 1);
      for (int again = 0; again < 3; ++again) {
        EXPECT_EQ(toy::error_of([&] { logits(m.model->scheduler(), ids, false, row, m.cancel); }), ErrorKind::device_lost);
        EXPECT_EQ(toy::error_of([&] { score(m.model->scheduler(), ids, scores, m.cancel); }), ErrorKind::device_lost);
        EXPECT_EQ(toy::error_of([&] { generate(m, {ids, text(6, 10)}, 5); }), ErrorKind::device_lost);
        EXPECT_EQ(m.leaked(), 0);
      }
      // Exceptions of other types, which a driver's library may throw, must be handled too.
      (late ? second->after : second->before) = [] { throw std::bad_alloc(); };
      EXPECT_THROW(logits(m.model->scheduler(), ids, false, row, m.cancel), std::bad_alloc);
      second->before = second->after = nullptr;
      expect_near(last_logits(m, ids), expected, "after errors");
      EXPECT_EQ(generate(m, {ids}, 20), expected_ids);
      EXPECT_EQ(m.leaked(), 0);

      // After an error in the middle of a generation, what was computed stays cached, and the next generation must give the same tokens.
      int run = 0, errors = 0;
      second->before = [&] {
        if (++run % 90 == 0) fail(ErrorKind::device, "a hiccup");
      };
      Ids result;
      while (result.empty() || errors < 2) {
        try {
          result = generate(m, {ids}, 20).at(0);
        } catch (const Error& error) {
          ASSERT_EQ(error.kind(), ErrorKind::device);
          ++errors;
        }
      }
      EXPECT_GT(errors, 1);
      EXPECT_EQ(result, expected_ids[0]);
    }
  }
}

TEST(Split, EncodersToo) {
  const auto second = std::make_shared<Second>();
  Ids ids;
  std::vector<std::int64_t> offsets = {0};
  for (std::size_t i = 0; i < 12; ++i) {
    const Ids one = text(i, 1 + i * 5);
    ids.insert(ids.end(), one.begin(), one.end());
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  std::vector<std::int32_t> types;
  for (std::size_t i = 0; i < ids.size(); ++i) types.push_back(static_cast<std::int32_t>(i % 2));
  const Texts texts{.ids = ids, .offsets = offsets, .types = types};
  struct Outputs {
    std::vector<float> pooled = std::vector<float>(12 * tiny::kHidden), classes = std::vector<float>(12 * tiny::kLabels), tokens;
  };
  const auto run = [&](const Loaded& m) {
    Outputs o;
    o.tokens.resize(ids.size() * tiny::kHidden);
    encode(m.model->runtime(Task::vectors), texts, o.pooled, tiny::kHidden, false, 0, {}, m.cancel);
    encode(m.model->runtime(Task::labels), texts, o.classes, tiny::kLabels, false, 0, {}, m.cancel);
    encode_tokens(m.model->runtime(Task::token_vectors), texts, o.tokens, {}, m.cancel);
    return o;
  };
  for (const std::size_t layers : {1, 2, 3}) {
    const Outputs expected = run(Loaded("bert", layers, {cpu()}));
    for (const Backends& backends : {Backends{cpu(), second}, Backends{second, cpu()}, Backends{cpu(), second, cpu()}}) {
      const Outputs found = run(Loaded("bert", layers, backends));
      expect_near(found.pooled, expected.pooled, "pooled");
      expect_near(found.classes, expected.classes, "classes");
      expect_near(found.tokens, expected.tokens, "tokens");
    }
  }
}

}  // namespace
}  // namespace pumice::engine::split_test
