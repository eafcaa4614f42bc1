// Tests of placement: which devices are chosen, how many layers and how much kv cache each device gets for its memory, and models that run
// as they were placed.
#include "engine/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <string>

#include "cpu/cpu_backend.h"
#include "engine/embedder.h"
#include "engine/model.h"
#include "engine/scorer.h"
#include "engine/toy.h"
#include "model/programs.h"
#include "model/tiny.h"
#include "reference/reference_backend.h"

namespace pumice::engine::placement_test {
namespace {

namespace tiny = model::tiny;
using Ids = std::vector<std::int32_t>;

Placement place(const model::Description& description, const Devices& devices, const LoadOptions& options) {
  return place(model::ModelPrograms(description, options.kv_format), devices, options);
}

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

std::shared_ptr<Backend> real_cpu() {
  static const std::shared_ptr<Backend> backend = cpu::make_backend(2);
  return backend;
}

// A device that claims any amount of memory. Its programs need as many bytes as on the CPU device, and the reference backend runs them.
class Fake : public reference::ReferenceBackend {
 public:
  Fake(std::string id, DeviceType type, std::uint64_t free, int spaces = 1, std::int64_t rows = 512)
      : ReferenceBackend(id, spaces), type_(type), free_(free), rows_(rows) {}
  DeviceInfo info() const override {
    DeviceInfo info = ReferenceBackend::info();
    info.type = type_;
    info.memory_total = info.memory_free = free_;
    return info;
  }
  Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const override {
    return real_cpu()->cost(program, weights, format, rows);
  }
  std::int64_t batch_rows() const override { return rows_; }

 private:
  const DeviceType type_;
  const std::uint64_t free_;
  const std::int64_t rows_;
};

Devices devices(std::uint64_t cpu, std::uint64_t gpu, DeviceType type = DeviceType::discrete, bool named = false) {
  return {.cpu = std::make_shared<Fake>("cpu", DeviceType::cpu, cpu, 2, 144),
          .gpus = {std::make_shared<Fake>("vulkan:0", type, gpu)},
          .gpu_named = named};
}

// Returns a sparse file of 39 GiB with the tensor shapes of Llama 3 70B.
std::shared_ptr<const files::ModelFile> seventy_billion(const tiny::TempFolder& folder) {
  constexpr std::uint64_t kLayers = 80, kHidden = 8192, kKv = 1024, kFfn = 28672, kVocab = 128256;
  files::testing::GgufBuilder file;
  file.text("general.architecture", "llama");
  const auto key = [&](const char* name, std::uint64_t value) { tiny::put(file, str("llama.", name), tiny::Json(value)); };
  key("block_count", kLayers);
  key("embedding_length", kHidden);
  key("attention.head_count", 64);
  key("attention.head_count_kv", 8);
  key("feed_forward_length", kFfn);
  key("context_length", 131072);
  tiny::put(file, "llama.attention.layer_norm_rms_epsilon", tiny::Json(1e-5));
  tiny::put(file, "llama.rope.freq_base", tiny::Json(5e5));
  const auto tensor = [&](const std::string& name, std::uint64_t rows, std::uint64_t cols, Format format) {
    file.hole(name, rows == 0 ? std::vector{cols} : std::vector{cols, rows}, info(format).gguf_id,
              std::max<std::uint64_t>(rows, 1) * static_cast<std::uint64_t>(row_bytes(format, static_cast<std::int64_t>(cols))));
  };
  tensor("token_embd.weight", kVocab, kHidden, Format::Q4_K);
  tensor("output_norm.weight", 0, kHidden, Format::F32);
  tensor("output.weight", kVocab, kHidden, Format::Q6_K);
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    const auto in_layer = [&](const char* name, std::uint64_t rows, std::uint64_t cols, Format format = Format::Q4_K) {
      tensor(str("blk.", layer, ".", name, ".weight"), rows, cols, format);
    };
    in_layer("attn_norm", 0, kHidden, Format::F32);
    in_layer("ffn_norm", 0, kHidden, Format::F32);
    in_layer("attn_q", kHidden, kHidden);
    in_layer("attn_k", kKv, kHidden);
    in_layer("attn_v", kKv, kHidden);
    in_layer("attn_output", kHidden, kHidden);
    in_layer("ffn_gate", kFfn, kHidden);
    in_layer("ffn_up", kFfn, kHidden);
    in_layer("ffn_down", kHidden, kFfn);
  }
  return files::ModelFile::open(folder.write("seventy.gguf", file.build()));
}

// Returns a sparse file of 17 GiB with the tensor shapes of Qwen3-30B-A3B, all of them in Q4_K.
std::shared_ptr<const files::ModelFile> thirty_billion_of_experts(const tiny::TempFolder& folder) {
  constexpr std::uint64_t kLayers = 48, kHidden = 2048, kQ = 4096, kKv = 512, kFfn = 768, kExperts = 128, kVocab = 151936;
  files::testing::GgufBuilder file;
  file.text("general.architecture", "qwen3moe");
  const auto key = [&](const char* name, std::uint64_t value) { tiny::put(file, str("qwen3moe.", name), tiny::Json(value)); };
  key("block_count", kLayers);
  key("embedding_length", kHidden);
  key("attention.head_count", 32);
  key("attention.head_count_kv", 4);
  key("attention.key_length", 128);
  key("attention.value_length", 128);
  key("feed_forward_length", 6144);
  key("expert_feed_forward_length", kFfn);
  key("expert_count", kExperts);
  key("expert_used_count", 8);
  key("context_length", 32768);
  tiny::put(file, "qwen3moe.attention.layer_norm_rms_epsilon", tiny::Json(1e-6));
  tiny::put(file, "qwen3moe.rope.freq_base", tiny::Json(1e6));
  const auto tensor = [&](const std::string& name, std::vector<std::uint64_t> shape, Format format) {
    std::uint64_t rows = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) rows *= shape[i];
    const auto bytes = static_cast<std::uint64_t>(row_bytes(format, static_cast<std::int64_t>(shape[0])));
    file.hole(name, std::move(shape), info(format).gguf_id, rows * bytes);
  };
  tensor("token_embd.weight", {kHidden, kVocab}, Format::Q4_K);
  tensor("output_norm.weight", {kHidden}, Format::F32);
  tensor("output.weight", {kHidden, kVocab}, Format::Q4_K);
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    const auto in_layer = [&](const char* name, std::vector<std::uint64_t> shape, Format format = Format::Q4_K) {
      tensor(str("blk.", layer, ".", name, ".weight"), std::move(shape), format);
    };
    for (const char* norm : {"attn_norm", "ffn_norm"}) in_layer(norm, {kHidden}, Format::F32);
    for (const char* norm : {"attn_q_norm", "attn_k_norm"}) in_layer(norm, {128}, Format::F32);
    in_layer("attn_q", {kHidden, kQ});
    in_layer("attn_k", {kHidden, kKv});
    in_layer("attn_v", {kHidden, kKv});
    in_layer("attn_output", {kQ, kHidden});
    in_layer("ffn_gate_inp", {kHidden, kExperts}, Format::F32);
    in_layer("ffn_gate_exps", {kHidden, kFfn, kExperts});
    in_layer("ffn_up_exps", {kHidden, kFfn, kExperts});
    in_layer("ffn_down_exps", {kFfn, kHidden, kExperts});
  }
  return files::ModelFile::open(folder.write("experts.gguf", file.build()));
}
const model::Description& thirty() {
  static tiny::TempFolder folder;
  static const model::Description description = model::describe(thirty_billion_of_experts(folder), {});
  return description;
}
const model::Description& seventy() {
  static tiny::TempFolder folder;
  static const model::Description description = model::describe(seventy_billion(folder), {});
  return description;
}
model::Description described(const std::string& name, std::size_t layers) {
  const tiny::TempFolder folder;
  return model::describe(tiny::open(tiny::make(name, layers), folder), {});
}

std::uint64_t used(const PlacedDevice& device, const Placement& p) {
  return device.weights + device.scratch + p.kv_budget / p.kv_page * device.kv_page;
}
std::size_t layers_on(const Placement& p, const std::string& device) {
  std::size_t count = 0;
  for (const StagePlan& stage : p.stages) count += p.devices[stage.device].id == device ? stage.last - stage.first : 0;
  return count;
}
ErrorKind problem_of(const Placement& p, std::initializer_list<const char*> parts) {
  if (!p.problem) throw std::runtime_error("it fits");
  for (const char* part : parts)
    EXPECT_NE(std::string(p.problem->what()).find(part), std::string::npos) << part << " in: " << p.problem->what();
  return p.problem->kind();
}

// ---------------------------------------------------------------- experts
bool fits(const PlacedDevice& device, const Placement& p, std::uint64_t free) { return used(device, p) <= free; }

TEST(Placement, ExpertsStayOnTheCpuWhereTheGpuIsTooSmallForThem) {
  const Placement p = place(thirty(), devices(64 * kGiB, 8 * kGiB), {});
  ASSERT_FALSE(p.problem);
  ASSERT_EQ(p.stages.size(), 1u);
  EXPECT_EQ(layers_on(p, "vulkan:0"), 48u);
  ASSERT_EQ(p.devices.size(), 2u);
  EXPECT_EQ(p.experts_device, 0u);
  EXPECT_TRUE(fits(p.devices[1], p, 8 * kGiB));
  EXPECT_GT(p.devices[1].weights, 4 * kGiB);  // the room is used
  EXPECT_GT(p.stages[0].away, 20u);
  // One layer's experts more would not fit.
  LoadOptions more;
  more.gpu_experts = static_cast<std::int64_t>(48 - p.stages[0].away + 1);
  more.gpu_layers = kAllLayers;
  EXPECT_EQ(problem_of(place(thirty(), devices(64 * kGiB, 8 * kGiB), more), {"48 of 48 layers need", "smaller gpu_experts"}),
            ErrorKind::out_of_device_memory);
  EXPECT_TRUE(
      std::ranges::any_of(p.notes, [](const std::string& note) { return note.find("layers stay on the CPU: with those of layer") < 30; }));
}

TEST(Placement, AGpuThatHoldsAllExpertsGetsThem) {
  const Placement p = place(thirty(), devices(64 * kGiB, 48 * kGiB), {});
  ASSERT_FALSE(p.problem);
  ASSERT_EQ(p.stages.size(), 1u);
  EXPECT_EQ(p.stages[0].away, 0u);
  EXPECT_FALSE(p.experts_device);
  EXPECT_EQ(p.devices.size(), 1u);
}

TEST(Placement, AGpuTooSmallForAllLayersWithoutExpertsGetsSomeOfThem) {
  const Placement p = place(thirty(), devices(64 * kGiB, kGiB), {});
  ASSERT_FALSE(p.problem);
  ASSERT_EQ(p.stages.size(), 2u);
  const std::size_t count = layers_on(p, "vulkan:0");
  EXPECT_GT(count, 5u);
  EXPECT_LT(count, 48u);
  EXPECT_TRUE(fits(p.devices[1], p, kGiB));
  EXPECT_EQ(p.stages[0].away, 0u);
  EXPECT_GE(p.stages[1].away, count - 1);
}

TEST(Placement, GpuExpertsSaysOfHowManyLayers) {
  for (const std::int64_t asked : {std::int64_t{0}, std::int64_t{5}, std::int64_t{48}, std::int64_t{100}, kAllLayers}) {
    LoadOptions options;
    options.gpu_experts = asked;
    const Placement p = place(thirty(), devices(64 * kGiB, 48 * kGiB), options);
    ASSERT_FALSE(p.problem) << asked;
    EXPECT_EQ(p.stages[0].away, asked == kAllLayers || asked >= 48 ? 0u : 48u - static_cast<std::size_t>(asked)) << asked;
  }
}

TEST(Placement, ExpertsBeyondTheMemoryAreReadFromTheFile) {
  const Devices cpu{.cpu = std::make_shared<Fake>("cpu", DeviceType::cpu, 8 * kGiB, 2, 144)};
  const Placement p = place(thirty(), cpu, {});
  ASSERT_FALSE(p.problem);
  EXPECT_GT(p.devices[0].expert_bytes, 4 * kGiB);
  EXPECT_LT(p.devices[0].expert_bytes, 7 * kGiB);
  EXPECT_TRUE(fits(p.devices[0], p, 8 * kGiB));
  EXPECT_NE(p.notes.front().find("of experts are in memory; the others are read from the file"), std::string::npos);
  // With too little memory even for the experts of one layer beside the rest, the model does not fit.
  const Devices small{.cpu = std::make_shared<Fake>("cpu", DeviceType::cpu, kGiB, 2, 144)};
  EXPECT_EQ(problem_of(place(thirty(), small, {}), {"for weights"}), ErrorKind::out_of_memory);
  LoadOptions little;
  little.expert_cache = 1 << 20;
  EXPECT_EQ(problem_of(place(thirty(), cpu, little), {"expert_cache=1048576 is too small"}), ErrorKind::out_of_memory);
  // Experts on the CPU beside a GPU are read from the file, too.
  const Placement both = place(thirty(), devices(6 * kGiB, 6 * kGiB), {});
  ASSERT_FALSE(both.problem);
  EXPECT_NE(both.devices[0].expert_bytes, kAllExperts);
  EXPECT_EQ(both.devices[1].expert_bytes, kAllExperts);
}

// ---------------------------------------------------------------- how many layers
TEST(Placement, AsManyLayersOfSeventyBillionWeightsAsTheCardHolds) {
  const Placement p = place(seventy(), devices(64 * kGiB, 24 * kGiB), {});
  ASSERT_FALSE(p.problem);
  ASSERT_EQ(p.devices.size(), 2u);
  ASSERT_EQ(p.stages.size(), 2u);
  const PlacedDevice &cpu = p.devices[0], &gpu = p.devices[1];
  EXPECT_EQ(cpu.id, "cpu");
  EXPECT_EQ(gpu.id, "vulkan:0");
  const std::size_t count = layers_on(p, "vulkan:0");
  EXPECT_GE(count, 40u);  // a layer takes 459 MiB and 32 MiB of keys and values, the head 822 MiB
  EXPECT_LE(count, 48u);
  EXPECT_EQ(p.stages[1].first, 80 - count);
  EXPECT_LE(used(cpu, p), cpu.memory_free);
  EXPECT_LE(used(gpu, p) + kGiB / 2, gpu.memory_free);
  // Another layer (491 MiB) would not fit beside the 512 MiB that are left to the driver.
  EXPECT_GT(used(gpu, p) + 1003 * (kGiB >> 10), gpu.memory_free);
  EXPECT_GE(p.n_ctx, kPlannedPositions);

  ASSERT_EQ(p.rows.size(), 82u);
  EXPECT_EQ(p.rows.front().name, "embedding");
  EXPECT_EQ(p.rows.front().device, "cpu");
  EXPECT_EQ(p.rows.back().name, "head");
  EXPECT_EQ(p.rows.back().device, "vulkan:0");
  std::uint64_t weights = 0, kv = 0;
  for (std::size_t layer = 0; layer < 80; ++layer) {
    const PlacementRow& row = p.rows[layer + 1];
    EXPECT_EQ(row.name, str("layer ", layer));
    EXPECT_EQ(row.device, layer < 80 - count ? "cpu" : "vulkan:0");
    EXPECT_EQ(row.formats, "Q4_K");
    EXPECT_EQ(row.kv, static_cast<std::uint64_t>(p.n_ctx) * 8 * 128 * 2 * 2);
    EXPECT_EQ(row.why.empty(), layer >= 80 - count);  // each layer on the CPU must say why it is not on the GPU
    kv += row.kv;
  }
  for (const PlacementRow& row : p.rows) weights += row.weights;
  EXPECT_EQ(weights, p.weights);
  EXPECT_EQ(kv, static_cast<std::uint64_t>(p.n_ctx / kPageTokens) * p.kv_page);
  EXPECT_NE(p.rows[80 - count].why.find("too much for vulkan:0"), std::string::npos);
  const auto missing = [&](std::size_t row) { return std::stoll(p.rows[row].why); };
  for (std::size_t row = 2; row <= 80 - count; ++row) EXPECT_LT(missing(row), missing(row - 1));
  EXPECT_TRUE(std::any_of(p.notes.begin(), p.notes.end(), [&](const std::string& note) {
    return note.find(str(count, " of 80 layers are on vulkan:0")) != std::string::npos &&
           note.find("keys and values of 8192 positions") != std::string::npos;
  }));
}

TEST(Placement, LargerCardsHoldMore) {
  std::size_t before = 0;
  for (const std::uint64_t gib : {1, 2, 8, 16, 24, 40, 48}) {
    const Placement p = place(seventy(), devices(64 * kGiB, gib * kGiB), {});
    ASSERT_FALSE(p.problem) << p.problem->what();
    const std::size_t count = layers_on(p, "vulkan:0");
    EXPECT_GE(count, before);
    if (gib == 1) {
      EXPECT_EQ(count, 0u);
    }
    if (gib == 16) {
      EXPECT_GT(count, 20u);
    }
    before = count;
  }
  EXPECT_EQ(before, 80u);
  const Placement all = place(seventy(), devices(64 * kGiB, 48 * kGiB), {});
  ASSERT_EQ(all.devices.size(), 1u);  // the embedding is on the GPU too, so the CPU has nothing
  EXPECT_EQ(all.rows.front().device, "vulkan:0");
  for (const PlacementRow& row : all.rows) EXPECT_EQ(row.why, "");
  const Placement none = place(seventy(), devices(64 * kGiB, 1 * kGiB), {});
  ASSERT_EQ(none.devices.size(), 1u);
  EXPECT_EQ(none.devices[0].id, "cpu");
  EXPECT_EQ(none.fallback.rfind("vulkan:0 is not used, the model runs on the CPU: with layer 79 it would have to hold", 0), 0u)
      << none.fallback;
  EXPECT_EQ(all.fallback, "");
}

TEST(Placement, ContextAndBudgetTakeRoomFromLayers) {
  const auto count = [](LoadOptions options) {
    const Placement p = place(seventy(), devices(256 * kGiB, 24 * kGiB), options);
    EXPECT_FALSE(p.problem) << p.problem->what();
    for (const PlacedDevice& device : p.devices) EXPECT_LE(used(device, p) + (device.id == "cpu" ? 0 : kGiB / 2), device.memory_free);
    if (options.n_ctx) {
      EXPECT_EQ(p.n_ctx, *options.n_ctx);
    }
    if (options.kv_budget) {
      EXPECT_EQ(p.kv_budget, *options.kv_budget);
    }
    return layers_on(p, "vulkan:0");
  };
  const std::size_t plain = count({});
  EXPECT_GT(count({.n_ctx = 512}), plain);
  EXPECT_LT(count({.n_ctx = 65536}), plain);
  EXPECT_GT(count({.n_ctx = 65536, .kv_format = KvFormat::q8_0}), count({.n_ctx = 65536}));
  EXPECT_LT(count({.kv_budget = 20 * kGiB}), plain);
  EXPECT_GT(count({.kv_budget = kGiB / 8}), plain);
}

TEST(Placement, AnyNumberThatFits) {
  const model::Description d = described("llama", 5);
  for (std::int64_t count = 0; count <= 5; ++count) {
    for (const bool named : {false, true}) {
      const Placement p = place(d, devices(4 * kGiB, 4 * kGiB, DeviceType::discrete, named), {.gpu_layers = count});
      ASSERT_FALSE(p.problem);
      EXPECT_EQ(layers_on(p, "vulkan:0"), static_cast<std::size_t>(count));
      EXPECT_EQ(p.devices.size(), count == 0 || count == 5 ? 1u : 2u);
      EXPECT_EQ(p.rows.front().device, count == 5 ? "vulkan:0" : "cpu");
      EXPECT_EQ(p.rows.back().device, count == 0 ? "cpu" : "vulkan:0");
      if (count > 0 && count < 5) {
        EXPECT_EQ(p.rows[0].why, str("gpu_layers=", count));
      }
    }
  }
  EXPECT_EQ(layers_on(place(d, devices(4 * kGiB, 4 * kGiB), {.gpu_layers = kAllLayers}), "vulkan:0"), 5u);
  std::string message;
  EXPECT_EQ(toy::error_of([&] { place(d, devices(4 * kGiB, 4 * kGiB), {.gpu_layers = 6}); }, &message), ErrorKind::invalid_argument);
  EXPECT_NE(message.find("the model has 5 layers"), std::string::npos);
}

TEST(Placement, TooManyLayersSayHowManyWouldFit) {
  const std::size_t most = layers_on(place(seventy(), devices(64 * kGiB, 24 * kGiB), {}), "vulkan:0");
  const auto asked = [&](std::int64_t count) { return place(seventy(), devices(64 * kGiB, 24 * kGiB), {.gpu_layers = count}); };
  EXPECT_FALSE(asked(static_cast<std::int64_t>(most)).problem);
  const std::string would = str(most, " layers would fit");
  for (const std::int64_t count : {static_cast<std::int64_t>(most) + 1, std::int64_t{80}, kAllLayers}) {
    const Placement p = asked(count);
    EXPECT_EQ(problem_of(p, {would.c_str(), "24064 MiB may be used", "weights", "vulkan:0"}), ErrorKind::out_of_device_memory);
    EXPECT_EQ(p.rows.size(), 82u);  // the table of rows must be complete despite the problem
  }
  // If a card cannot hold a single layer, it is an error if the user named the card. Otherwise the card is left out.
  EXPECT_EQ(problem_of(place(seventy(), devices(64 * kGiB, kGiB, DeviceType::discrete, true), {}), {"not one", "960 MiB may be used"}),
            ErrorKind::out_of_device_memory);
}

TEST(Placement, WhatDoesNotFitIntoTheRestIsSaid) {
  EXPECT_EQ(problem_of(place(seventy(), devices(8 * kGiB, 24 * kGiB), {}), {"what lies on cpu", "8192 MiB of memory is free"}),
            ErrorKind::out_of_memory);
  const Devices alone{.cpu = std::make_shared<Fake>("cpu", DeviceType::cpu, 8 * kGiB)};
  const Placement p = place(seventy(), alone, {});
  EXPECT_EQ(problem_of(p, {"the model needs", "8192 MiB"}), ErrorKind::out_of_memory);
  EXPECT_EQ(p.rows.size(), 82u);
  EXPECT_GT(p.rows[1].kv, 0u);
  // Loading the model must fail with the message of the plan.
  tiny::TempFolder folder;
  Cancel cancel;
  std::string message;
  EXPECT_EQ(toy::error_of([&] { Model::load_on(alone, seventy_billion(folder), {}, {}, cancel); }, &message), ErrorKind::out_of_memory);
  EXPECT_EQ(message, p.problem->what());
}

TEST(Placement, DevicesThatShareTheMachinesMemoryAreCountedTogether) {
  for (const DeviceType type : {DeviceType::integrated, DeviceType::software}) {
    // The part of either device would fit by itself, but both parts together exceed the machine's 30 GiB.
    EXPECT_EQ(problem_of(place(seventy(), devices(30 * kGiB, 24 * kGiB, type), {}), {"cpu and vulkan:0", "30720 MiB"}),
              ErrorKind::out_of_memory);
    const Placement p = place(seventy(), devices(64 * kGiB, 24 * kGiB, type), {});
    ASSERT_FALSE(p.problem);
    EXPECT_EQ(p.memory_free, 64 * kGiB);
    EXPECT_LE(used(p.devices[0], p) + used(p.devices[1], p), 64 * kGiB);
    // Such a GPU cannot use more memory than the machine has, even if it claims more.
    EXPECT_EQ(problem_of(place(seventy(), devices(8 * kGiB, 64 * kGiB, type), {.gpu_layers = kAllLayers}), {"8192 MiB may be used"}),
              ErrorKind::out_of_device_memory);
  }
  EXPECT_EQ(place(seventy(), devices(64 * kGiB, 24 * kGiB), {}).memory_free, 88 * kGiB);
}

TEST(Placement, PagesFitOnEveryDevice) {
  const auto room = [](const PlacedDevice& d) { return (d.memory_free - d.weights - d.scratch) / d.kv_page; };
  for (const std::uint64_t cpu : {40, 41, 48, 256}) {
    for (const std::uint64_t gpu : {12, 24, 40}) {
      for (const std::int64_t count : {1, 10, 20}) {
        const Placement p = place(seventy(), devices(cpu * kGiB, gpu * kGiB), {.gpu_layers = count});
        ASSERT_FALSE(p.problem) << p.problem->what();
        const std::uint64_t pages = p.kv_budget / p.kv_page;
        EXPECT_GE(pages, 1u);
        for (const PlacedDevice& device : p.devices)
          EXPECT_LE(pages, room(device)) << device.id << ", " << cpu << ", " << gpu << ", " << count;
        EXPECT_LE(p.n_ctx, static_cast<std::int64_t>(pages) * kPageTokens);
      }
    }
  }
  // If the user asks for more than the devices hold, the error must name the device that lacks memory.
  const Placement tight = place(seventy(), devices(256 * kGiB, 13 * kGiB), {.gpu_layers = 20, .kv_budget = 200 * kGiB});
  problem_of(tight, {"vulkan:0"});
  EXPECT_EQ(problem_of(place(seventy(), devices(41 * kGiB, 256 * kGiB), {.gpu_layers = 1, .n_ctx = 131072}), {"on cpu", "n_ctx=131072"}),
            ErrorKind::out_of_memory);
}

// A GPU on which each program needs the scratch memory that the test sets. The plan must consider every program that a decoder's head may
// run: all logits, log-probabilities, and the largest logits. Only devices whose results come back slowly run the last of these.
class Ranking final : public reference::ReferenceBackend {
 public:
  Ranking(bool slow, std::map<std::string, std::uint64_t> scratch)
      : ReferenceBackend("vulkan:0"), slow_(slow), scratch_(std::move(scratch)) {}
  DeviceInfo info() const override {
    DeviceInfo info = ReferenceBackend::info();
    info.type = DeviceType::discrete;
    info.memory_total = info.memory_free = kGiB;
    return info;
  }
  Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const override {
    Cost cost = real_cpu()->cost(program, weights, format, rows);
    const auto known = scratch_.find(program.name);
    cost.scratch = known != scratch_.end() ? known->second * static_cast<std::uint64_t>(rows) : 1000;
    return cost;
  }
  std::int32_t ranks(const MatrixShape&, std::uint64_t) const override { return slow_ ? kMostTop : 0; }

 private:
  const bool slow_;
  const std::map<std::string, std::uint64_t> scratch_;
};

TEST(Placement, ScratchIsThatOfTheHeadsLargestProgram) {
  const model::Description d = described("llama", 3);
  const std::string head = model::head_program(d).name, log_probs = model::log_prob_program(d).name, top = model::top_program(d).name;
  const auto scratch = [&](bool slow, std::uint64_t of_head, std::uint64_t of_log_probs, std::uint64_t of_top) {
    const Devices devices{.cpu = std::make_shared<Fake>("cpu", DeviceType::cpu, kGiB),
                          .gpus = {std::make_shared<Ranking>(
                              slow, std::map<std::string, std::uint64_t>{{head, of_head}, {log_probs, of_log_probs}, {top, of_top}})}};
    const Placement p = place(d, devices, {.gpu_layers = kAllLayers});
    EXPECT_FALSE(p.problem);
    return p.devices.at(0).scratch;
  };
  const auto rows = static_cast<std::uint64_t>(head_rows(tiny::kVocab));
  EXPECT_EQ(rows, 128u);
  EXPECT_EQ(scratch(true, 3000, 20, 10), 3000 * rows);
  EXPECT_EQ(scratch(true, 3000, 4000, 10), 4000 * rows);
  EXPECT_EQ(scratch(true, 3000, 4000, 5000), 5000 * rows);
  EXPECT_EQ(scratch(false, 3000, 4000, 5000), 4000 * rows);
  EXPECT_EQ(head_rows(128256), 32);
}

// A CPU that finds three logits faster with a sketch.
class Sketching final : public Fake {
 public:
  Sketching() : Fake("cpu", DeviceType::cpu, kGiB) {}
  std::int32_t ranks(const MatrixShape& head, std::uint64_t step_bytes) const override {
    head_rows = head.rows;
    read = step_bytes;
    return 3;
  }
  mutable std::int64_t head_rows = 0;
  mutable std::uint64_t read = 0;
};

TEST(Placement, ASketchOfTheHeadHasARowAndCanBeLeftOut) {
  for (const char* name : {"llama", "gemma3"}) {
    SCOPED_TRACE(name);
    const model::Description d = described(name, 3);
    const auto cpu = std::make_shared<Sketching>();
    const Placement with = place(d, {.cpu = cpu, .gpus = {}}, {}), without = place(d, {.cpu = cpu, .gpus = {}}, {.sketch = false});
    EXPECT_EQ(with.ranks, 3);
    EXPECT_EQ(without.ranks, 0);
    EXPECT_EQ(with.rows.size(), without.rows.size() + 1);
    EXPECT_EQ(with.rows.back().name, "sketch of the head");
    EXPECT_GT(with.rows.back().weights, 0u);
    EXPECT_EQ(with.weights, without.weights + with.rows.back().weights);
  }
}

// A step reads all matrices; of the embedding only the head, if it is that, and of the experts those of one row.
TEST(Placement, ASketchIsComparedWithWhatAStepReads) {
  const model::Description llama = described("llama", 3), gemma = described("gemma3", 3);
  for (const model::Description* d : {&llama, &gemma, &thirty()}) {
    const auto cpu = std::make_shared<Sketching>();
    place(*d, {.cpu = cpu, .gpus = {}}, {});
    const MatrixId table = d->global(model::Role::token_embedding).matrix, head = d->global(model::Role::head).matrix;
    std::uint64_t read = 0;
    for (std::size_t m = 0; m < d->weights.matrices.size(); ++m) {
      const Matrix& matrix = d->weights.matrices[m];
      const auto bytes = static_cast<std::uint64_t>(matrix.rows * row_bytes(matrix.format, matrix.cols));
      if (static_cast<MatrixId>(m) != table || table == head) read += matrix.experts > 1 ? bytes / 128 * 8 : bytes;
    }
    EXPECT_EQ(cpu->head_rows, d->weights.matrices[static_cast<std::size_t>(head)].rows);
    EXPECT_EQ(cpu->read, read);
  }
}

TEST(Placement, ATiedHeadIsThereTwiceOnlyWhenItIsSplitFromTheEmbedding) {
  const model::Description d = described("gemma3", 3);
  const auto head = [&](std::int64_t count) { return place(d, devices(kGiB, kGiB), {.gpu_layers = count}).rows.back(); };
  EXPECT_EQ(head(3).weights, 0u);
  EXPECT_EQ(head(0).weights, 0u);
  EXPECT_GE(head(1).weights, static_cast<std::uint64_t>(tiny::kVocab * tiny::kHidden) * 4);
  EXPECT_EQ(head(1).name, "head (the embedding)");
}

TEST(Placement, EncodersHaveTheirClassifierWithTheLastLayer) {
  const model::Description d = described("bert", 4);
  for (const std::int64_t count : {0, 1, 3, 4}) {
    const Placement p = place(d, devices(kGiB, kGiB), {.gpu_layers = count});
    ASSERT_FALSE(p.problem);
    ASSERT_EQ(p.rows.size(), 6u);
    EXPECT_EQ(p.rows.back().name, "classifier");
    EXPECT_EQ(p.rows.back().device, count == 0 ? "cpu" : "vulkan:0");
    EXPECT_GE(p.rows.back().weights, static_cast<std::uint64_t>(tiny::kHidden * tiny::kHidden) * 4);  // includes the pooler
    EXPECT_EQ(p.kv_budget, 0u);
  }
}

// ---------------------------------------------------------------- several GPUs
Devices several(std::uint64_t cpu, const std::vector<std::uint64_t>& gpus, DeviceType type = DeviceType::discrete) {
  Devices d{.cpu = std::make_shared<Fake>("cpu", DeviceType::cpu, cpu, 2, 144), .gpus = {}, .gpu_named = true};
  for (std::size_t i = 0; i < gpus.size(); ++i) d.gpus.push_back(std::make_shared<Fake>(str("vulkan:", i), type, gpus[i]));
  return d;
}
std::string layers_of(const Placement& p) {
  std::string text;
  for (const StagePlan& stage : p.stages)
    text += str(text.empty() ? "" : ", ", p.devices[stage.device].id, " ", stage.first, "-", stage.last);
  return text;
}
bool noted(const Placement& p, const std::string& part) {
  return std::ranges::any_of(p.notes, [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

TEST(SeveralGpus, EachIsFilledToTheSameShareOfItsMemory) {
  const Placement p = place(seventy(), several(64 * kGiB, {48 * kGiB, 24 * kGiB}), {});
  ASSERT_FALSE(p.problem);
  ASSERT_EQ(p.devices.size(), 2u);
  EXPECT_EQ(layers_of(p), str("vulkan:0 0-", p.stages[1].first, ", vulkan:1 ", p.stages[1].first, "-80"));
  const auto share = [&](std::size_t i) {
    return static_cast<double>(used(p.devices[i], p)) / static_cast<double>(p.devices[i].memory_free);
  };
  EXPECT_NEAR(share(0), share(1), 0.04);  // a layer with its keys and values takes up to 2 % of the smaller one
  EXPECT_EQ(p.rows.front().device, "vulkan:0");
  EXPECT_EQ(p.rows.back().device, "vulkan:1");
  EXPECT_EQ(p.memory_free, 72 * kGiB);
  for (const PlacementRow& row : p.rows) EXPECT_EQ(row.why, "");
  // The order in which they are named is the order of the layers.
  const Placement turned = place(seventy(), several(64 * kGiB, {24 * kGiB, 48 * kGiB}), {});
  EXPECT_LT(turned.stages[0].last, 40u);
  EXPECT_GT(p.stages[0].last, 40u);
}

TEST(SeveralGpus, TogetherTheyHoldWhatNoneHoldsAlone) {
  const std::size_t one = layers_on(place(seventy(), several(64 * kGiB, {24 * kGiB}), {}), "vulkan:0");
  const Placement p = place(seventy(), several(64 * kGiB, {8 * kGiB, 24 * kGiB, 4 * kGiB}), {});
  ASSERT_FALSE(p.problem);
  ASSERT_EQ(p.stages.size(), 4u);
  EXPECT_EQ(p.devices[0].id, "cpu");
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_LE(used(p.devices[i], p), p.devices[i].memory_free);
    EXPECT_GT(used(p.devices[i], p) + 1100 * (kGiB >> 10), p.devices[i].memory_free);  // one layer more, and what is left to the driver
  }
  const std::size_t count = 80 - p.stages[1].first;
  EXPECT_GT(count, one + 15);
  EXPECT_TRUE(noted(p, str(count, " of 80 layers are on vulkan:0, vulkan:1 and vulkan:2: with layer ", 79 - count, " vulkan:")));
  EXPECT_NE(p.rows[1].why.find("too much for vulkan:0, vulkan:1 and vulkan:2"), std::string::npos);
  // What is asked for and does not fit is said of each device.
  const Placement all = place(seventy(), several(64 * kGiB, {8 * kGiB, 24 * kGiB}), {.gpu_layers = kAllLayers});
  EXPECT_EQ(problem_of(all, {"80 of 80 layers need", "on vulkan:0, where 7680 MiB may be used, and ", "on vulkan:1, where 24064 MiB",
                             "would fit"}),
            ErrorKind::out_of_device_memory);
  EXPECT_EQ(
      problem_of(place(seventy(), several(64 * kGiB, {kGiB, kGiB}), {}), {"vulkan:0 + vulkan:1 hold not one", "may be used on vulkan:"}),
      ErrorKind::out_of_device_memory);
}

TEST(SeveralGpus, OneThatIsTooSmallIsIdle) {
  const Placement p = place(seventy(), several(64 * kGiB, {60 * kGiB, kGiB / 2}), {});
  ASSERT_FALSE(p.problem);
  EXPECT_EQ(layers_of(p), "vulkan:0 0-80");
  EXPECT_TRUE(noted(p, "vulkan:1 is idle"));
  const Placement none = place(seventy(), several(64 * kGiB, {48 * kGiB, 24 * kGiB}), {.gpu_layers = 0});
  EXPECT_EQ(layers_of(none), "cpu 0-80");
  EXPECT_TRUE(noted(none, "vulkan:0 is idle: gpu_layers=0"));
  EXPECT_TRUE(noted(none, "vulkan:1 is idle: gpu_layers=0"));
  EXPECT_EQ(layers_of(place(described("llama", 2), several(kGiB, {kGiB, kGiB, kGiB}), {.gpu_layers = kAllLayers})),
            "vulkan:1 0-1, vulkan:2 1-2");
}

TEST(SeveralGpus, NumbersOfLayersMayBeGivenForEach) {
  const model::Description d = described("llama", 5);
  const auto placed = [&](std::vector<std::int64_t> each) {
    return place(d, several(kGiB, {kGiB, kGiB}), {.gpu_layers_each = std::move(each)});
  };
  EXPECT_EQ(layers_of(placed({3, 2})), "vulkan:0 0-3, vulkan:1 3-5");
  EXPECT_EQ(layers_of(placed({1, 2})), "cpu 0-2, vulkan:0 2-3, vulkan:1 3-5");
  EXPECT_EQ(placed({1, 2}).rows.front().why, "gpu_layers=[1, 2]");
  EXPECT_EQ(layers_of(placed({2, 0})), "cpu 0-3, vulkan:0 3-5");
  EXPECT_TRUE(noted(placed({2, 0}), "vulkan:1 is idle"));
  EXPECT_EQ(layers_of(placed({0, 0})), "cpu 0-5");
  std::string message;
  for (const auto& each : std::vector<std::vector<std::int64_t>>{{1}, {1, 1, 1}, {3, 3}}) {
    EXPECT_EQ(toy::error_of([&] { placed(each); }, &message), ErrorKind::invalid_argument);
    EXPECT_NE(message.find("gpu_layers=["), std::string::npos) << message;
  }
  const Placement tight = place(seventy(), several(64 * kGiB, {8 * kGiB, 48 * kGiB}), {.gpu_layers_each = {40, 40}});
  EXPECT_EQ(problem_of(tight, {"on vulkan:0, where 7680 MiB may be used"}), ErrorKind::out_of_device_memory);
}

TEST(SeveralGpus, ExpertsOfAnyOfThemMayStayOnTheCpu) {
  const Placement p = place(thirty(), several(64 * kGiB, {3 * kGiB, 6 * kGiB}), {});
  ASSERT_FALSE(p.problem);
  ASSERT_EQ(p.stages.size(), 2u);
  EXPECT_EQ(p.experts_device, 0u);
  EXPECT_EQ(p.devices[0].id, "cpu");
  std::size_t away = 0;
  for (const StagePlan& stage : p.stages) {
    EXPECT_TRUE(fits(p.devices[stage.device], p, p.devices[stage.device].memory_free));
    EXPECT_GT(stage.away, 0u);
    EXPECT_LT(stage.away, stage.last - stage.first);  // the room is used for some
    away += stage.away;
  }
  EXPECT_TRUE(noted(p, str("the experts of ", away, " of 48 layers stay on the CPU: with those of layer ")));
  const auto rows = std::ranges::count_if(p.rows, [](const PlacementRow& row) { return row.name.starts_with("experts of layer "); });
  EXPECT_EQ(static_cast<std::size_t>(rows), away);
  std::uint64_t weights = 0;
  for (const PlacementRow& row : p.rows) weights += row.weights;
  EXPECT_EQ(weights, p.weights);
  LoadOptions asked;
  asked.gpu_experts = 30;
  asked.gpu_layers_each = {24, 24};
  const Placement thirty_there = place(thirty(), several(64 * kGiB, {48 * kGiB, 48 * kGiB}), asked);
  ASSERT_EQ(thirty_there.stages.size(), 2u);
  EXPECT_EQ(thirty_there.stages[0].away, 18u);
  EXPECT_EQ(thirty_there.stages[1].away, 0u);
}

TEST(SeveralGpus, ThoseInTheMachinesMemoryShareIt) {
  // Each claims all of the machine's memory, and together they must not take more than that.
  const Placement p = place(seventy(), several(30 * kGiB, {30 * kGiB, 30 * kGiB}, DeviceType::software), {.gpu_layers = 40});
  ASSERT_FALSE(p.problem && p.problem->kind() == ErrorKind::out_of_device_memory);
  const Placement all = place(seventy(), several(30 * kGiB, {30 * kGiB, 30 * kGiB}, DeviceType::software), {.gpu_layers = kAllLayers});
  EXPECT_EQ(problem_of(all, {"80 of 80 layers need"}), ErrorKind::out_of_device_memory);
  const Placement roomy = place(seventy(), several(64 * kGiB, {64 * kGiB, 64 * kGiB}, DeviceType::software), {});
  ASSERT_FALSE(roomy.problem);
  EXPECT_EQ(roomy.stages.size(), 2u);
  EXPECT_EQ(roomy.memory_free, 64 * kGiB);
  EXPECT_LE(used(roomy.devices[0], roomy) + used(roomy.devices[1], roomy), 64 * kGiB);
}

TEST(SeveralGpus, AllExpertsOnFewerRatherThanSomeOnTheCpu) {
  const Placement p = place(thirty(), several(64 * kGiB, {40 * kGiB, 3 * kGiB / 8}), {});
  ASSERT_FALSE(p.problem);
  EXPECT_EQ(layers_of(p), "vulkan:0 0-48");
  EXPECT_FALSE(p.experts_device);
  EXPECT_TRUE(noted(p, "vulkan:1 is idle"));
}

// Only the last device has the head. The layers before it are shared evenly among the others.
TEST(SeveralGpus, AHeadThatFillsTheLastOneDoesNotFillTheOthers) {
  const model::Description d = described("llama", 12);
  const Placement p = place(d, several(kGiB, {kGiB, kGiB, kGiB, kGiB}), {.gpu_layers = kAllLayers});
  ASSERT_EQ(p.stages.size(), 4u);
  std::size_t most = 0;
  for (const StagePlan& stage : p.stages) most = std::max(most, stage.last - stage.first);
  EXPECT_LE(most, 6u) << layers_of(p);
}

TEST(Placement, AGpuInTheMachinesMemoryHasNoMoreThanTheCpu) {
  const model::Description d = described("llama", 5);
  const LoadOptions all{.gpu_layers = kAllLayers};
  const Placement claims = place(d, devices(kGiB, 64 * kGiB, DeviceType::integrated), all);
  const Placement equal = place(d, devices(kGiB, kGiB, DeviceType::integrated), all);
  EXPECT_EQ(claims.kv_budget, equal.kv_budget);
  EXPECT_EQ(claims.memory_free, kGiB);
  EXPECT_EQ(problem_of(place(seventy(), devices(8 * kGiB, 64 * kGiB, DeviceType::integrated), {.gpu_layers = 5}), {"8192 MiB"}),
            ErrorKind::out_of_memory);
}

// ---------------------------------------------------------------- which device
struct Card {
  DeviceType type;
  std::string why_not;
  bool opens = true;
};
using Cards = std::vector<Card>;
// A machine with these cards. `opened` is the index of the card that was opened last; -1: none.
struct Room {
  Room(const Room&) = delete;
  explicit Room(Cards cards) : cards(std::move(cards)) {
    room.list = [this] {
      std::vector<DeviceInfo> list;
      for (std::size_t i = 0; i < this->cards.size(); ++i) {
        const Card& card = this->cards[i];
        list.push_back(
            {.id = str("vulkan:", i), .name = "Card", .type = card.type, .usable = card.why_not.empty(), .why_not = card.why_not});
      }
      return list;
    };
    room.open = [this](std::size_t index) -> std::shared_ptr<Backend> {
      if (!this->cards.at(index).opens) fail(ErrorKind::device, "the driver says no");
      opened = static_cast<int>(index);
      return std::make_shared<Fake>(str("vulkan:", index), this->cards[index].type, kGiB);
    };
  }
  Cards cards;
  GpuRoom room;
  int opened = -1;
};

int opened(Cards cards, LoadOptions options) {
  Room room(std::move(cards));
  const Devices d = open_devices(options, room.room);
  EXPECT_NE(d.cpu, nullptr);
  EXPECT_EQ(!d.gpus.empty(), room.opened >= 0);
  EXPECT_EQ(d.gpu_named, options.device.starts_with("vulkan"));
  return room.opened;
}
void refused(Cards cards, LoadOptions options, ErrorKind kind, std::initializer_list<const char*> parts) {
  const Room room(std::move(cards));
  std::string message;
  EXPECT_EQ(toy::error_of([&] { open_devices(options, room.room); }, &message), kind) << message;
  for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

TEST(Devices, AutoTakesARealGpuElseTheCpu) {
  EXPECT_EQ(opened({}, {}), -1);
  EXPECT_EQ(opened({{DeviceType::software}}, {}), -1);  // a software GPU is slower than the CPU backend
  EXPECT_EQ(opened({{DeviceType::cpu}}, {}), -1);
  EXPECT_EQ(opened({{DeviceType::software}, {DeviceType::integrated}, {DeviceType::discrete}, {DeviceType::discrete}}, {}), 2);
  EXPECT_EQ(opened({{DeviceType::software}, {DeviceType::integrated}}, {}), 1);
  EXPECT_EQ(opened({{DeviceType::discrete, "Vulkan 1.1"}, {DeviceType::integrated}}, {}), 1);
  EXPECT_EQ(opened({{DeviceType::discrete}}, {.gpu_layers = 3}), 0);
  EXPECT_EQ(opened({{DeviceType::discrete}}, {.gpu_layers = 0}), -1);
  EXPECT_EQ(opened({{DeviceType::discrete}}, {.device = "cpu"}), -1);
  EXPECT_EQ(opened({{DeviceType::discrete}}, {.device = "cpu", .gpu_layers = 0}), -1);
}

TEST(Devices, AutoSaysWhyACardIsLeftOut) {
  Room broken(Cards{{DeviceType::discrete, "", false}});
  Devices d = open_devices({}, broken.room);
  EXPECT_TRUE(d.gpus.empty());
  EXPECT_EQ(d.fallback, "vulkan:0 is not used, the model runs on the CPU: the driver says no");
  const model::Description llama = described("llama", 2);
  const Placement p = place(llama, d, {});
  EXPECT_EQ(p.fallback, d.fallback);
  EXPECT_EQ(p.devices.front().id, "cpu");
  const Room old(Cards{{DeviceType::discrete, "Vulkan 1.1"}});
  d = open_devices({}, old.room);
  ASSERT_EQ(d.notes.size(), 1u);
  EXPECT_EQ(d.notes[0], "vulkan:0 is not used: Vulkan 1.1");
  EXPECT_EQ(place(llama, d, {}).notes, d.notes);
  const Room no_loader(Cards{{DeviceType::none, "libvulkan.so.1 is not here"}});
  // Many machines have no GPU and no Vulkan loader, so its absence is not worth a note.
  EXPECT_TRUE(open_devices({}, no_loader.room).notes.empty());
}

TEST(Devices, ANamedDeviceIsTakenOrRefused) {
  EXPECT_EQ(opened({{DeviceType::software}}, {.device = "vulkan"}), 0);
  EXPECT_EQ(opened({{DeviceType::software}, {DeviceType::discrete}}, {.device = "vulkan"}), 1);
  EXPECT_EQ(opened({{DeviceType::software}, {DeviceType::discrete}}, {.device = "vulkan:0"}), 0);
  EXPECT_EQ(opened({{DeviceType::software}, {DeviceType::discrete}}, {.device = "vulkan:1", .gpu_layers = kAllLayers}), 1);
  const auto missing = ErrorKind::device_not_found;
  refused({}, {.device = "vulkan"}, missing, {"no Vulkan device was found"});
  refused({{DeviceType::none, "libvulkan.so.1 is not here: apt install libvulkan1"}}, {.device = "vulkan"}, missing,
          {"apt install libvulkan1"});
  refused({{DeviceType::none, "libvulkan.so.1 is not here: apt install libvulkan1"}}, {.device = "vulkan:3"}, missing,
          {"vulkan:3", "apt install"});
  refused({{DeviceType::discrete, "Vulkan 1.1"}}, {.device = "vulkan:0"}, missing, {"Vulkan 1.1"});
  refused({{DeviceType::discrete}}, {.device = "vulkan:7"}, missing, {"\"vulkan:7\"", "\"vulkan:0\"", "\"cpu\""});
  refused({{DeviceType::discrete}}, {.device = "cuda"}, missing, {"cuda", "\"vulkan:0\""});
  for (const char* id : {"vulkan:", "vulkan:x", "vulkan:-1", "vulkan: 0", "vulkan0", "Vulkan", ""})
    refused({{DeviceType::discrete}}, {.device = id}, missing, {"not known"});
  refused({{DeviceType::discrete, "", false}}, {.device = "vulkan"}, ErrorKind::device, {"the driver says no"});
  GpuRoom none{.list = [] { return std::vector<DeviceInfo>(); }, .open = {}, .absent = "built without Vulkan"};
  std::string message;
  EXPECT_EQ(toy::error_of([&] { open_devices({.device = "vulkan:0"}, none); }, &message), missing);
  EXPECT_NE(message.find("built without Vulkan"), std::string::npos);
}

TEST(Devices, SeveralAreOpenedInTheirOrder) {
  Room room(Cards{{DeviceType::discrete}, {DeviceType::software}, {DeviceType::discrete}});
  const Devices d = open_devices({.device = "vulkan:2+vulkan:0"}, room.room);
  ASSERT_EQ(d.gpus.size(), 2u);
  EXPECT_EQ(d.gpus[0]->info().id, "vulkan:2");
  EXPECT_EQ(d.gpus[1]->info().id, "vulkan:0");
  EXPECT_TRUE(d.gpu_named);
  const Cards cards = {{DeviceType::discrete}, {DeviceType::discrete, "Vulkan 1.1"}};
  const auto wrong = ErrorKind::invalid_argument;
  refused(cards, {.device = "vulkan:0+vulkan:0"}, wrong, {"\"vulkan:0\" is named twice"});
  refused(cards, {.device = "vulkan:0+vulkan:00"}, wrong, {"named twice"});
  refused(cards, {.device = "vulkan+vulkan:0"}, wrong, {"needs its number"});
  refused(cards, {.device = "vulkan:0+cpu"}, wrong, {"name the GPUs alone"});
  refused(cards, {.device = "vulkan:0+"}, wrong, {"\"\" is no GPU"});
  refused(cards, {.device = "vulkan:0+auto"}, wrong, {"\"auto\" is no GPU"});
  refused(cards, {.device = "vulkan:0+vulkan:1"}, ErrorKind::device_not_found, {"Vulkan 1.1"});
  refused(cards, {.device = "vulkan:0+vulkan:7"}, ErrorKind::device_not_found, {"\"vulkan:7\""});
}

TEST(Devices, LayersThatCannotBePlacedAreRefused) {
  refused({{DeviceType::discrete}}, {.device = "cpu", .gpu_layers = 1}, ErrorKind::invalid_argument, {"gpu_layers=1", "device=\"cpu\""});
  refused({{DeviceType::discrete}}, {.device = "cpu", .gpu_layers = kAllLayers}, ErrorKind::invalid_argument, {"gpu_layers=\"all\""});
  refused({{DeviceType::discrete}}, {.gpu_layers = -2}, ErrorKind::invalid_argument, {"-2"});
  refused({}, {.gpu_layers = 4}, ErrorKind::device_not_found, {"gpu_layers=4", "no Vulkan device was found"});
  refused({{DeviceType::software}}, {.gpu_layers = kAllLayers}, ErrorKind::device_not_found, {"software"});
  refused({{DeviceType::discrete, "", false}}, {.gpu_layers = 1}, ErrorKind::device, {"the driver says no"});
}

TEST(Devices, TheCpuComesFirst) {
  Room room(Cards{{DeviceType::discrete}, {DeviceType::none, "no"}});
  const auto list = engine::devices(room.room);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].id, "cpu");
  EXPECT_EQ(list[1].id, "vulkan:0");
  EXPECT_FALSE(list[2].usable);
  EXPECT_EQ(room.opened, -1);  // listing the devices must not open one
  EXPECT_EQ(engine::devices().front().id, "cpu");
}

// ---------------------------------------------------------------- models that run as placed
Ids text(std::uint64_t seed, std::size_t length) {
  Ids ids;
  for (std::size_t i = 0; i < length; ++i) ids.push_back(static_cast<std::int32_t>(toy::mix(seed * 1000003 + i) % tiny::kVocab));
  return ids;
}
void expect_near(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(found[i] - expected[i])));
    largest = std::max(largest, static_cast<double>(std::abs(expected[i])));
  }
  EXPECT_GT(largest, 0.1);
  EXPECT_LT(worst, 2e-5 * largest);
}

TEST(Placement, DecodersRunWithAnyNumberOfLayersOnTheGpu) {
  for (const char* name : {"llama.gguf", "gemma3"}) {
    const Ids ids = text(1, 75);
    std::vector<float> expected, found(tiny::kVocab);
    for (const std::int64_t count : {0, 1, 2, 4, 5}) {
      tiny::TempFolder folder;
      Cancel cancel;
      Devices d = devices(4 * kGiB, 4 * kGiB);
      d.cpu = real_cpu();
      const auto m = Model::load_on(d, tiny::open(tiny::make(name, 5), folder),
                                    {.gpu_layers = count, .kv_format = KvFormat::f32, .compute = Compute::float32}, {}, cancel);
      EXPECT_EQ(layers_on(m->placement(), "vulkan:0"), static_cast<std::size_t>(count));
      logits(m->scheduler(), ids, false, found, cancel);
      if (count == 0) expected = found;
      expect_near(found, expected);
      // The device with the most workers chooses tokens. The device with the fewest workers limits how many runs go on at once.
      EXPECT_EQ(m->decoder().pipeline.widest().info().id, count == 5 ? "vulkan:0" : "cpu");
      EXPECT_EQ(m->decoder().pipeline.narrowest().info().id, count == 0 ? "cpu" : "vulkan:0");
      EXPECT_EQ(m->decoder().pipeline.batch_rows(), count == 0 ? 144 : 512);
    }
  }
}

TEST(Placement, EncodersRunWithAnyNumberOfLayersOnTheGpu) {
  Ids ids;
  std::vector<std::int64_t> offsets = {0};
  for (std::size_t i = 0; i < 40; ++i) {
    const Ids one = text(i, 1 + i);
    ids.insert(ids.end(), one.begin(), one.end());
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const Texts texts{.ids = ids, .offsets = offsets, .types = {}};
  std::vector<float> expected, expected_classes;
  for (const std::int64_t count : {0, 1, 2, 3}) {
    for (const int spaces : {1, 3}) {
      tiny::TempFolder folder;
      Cancel cancel;
      const Devices d{.cpu = real_cpu(), .gpus = {std::make_shared<Fake>("vulkan:0", DeviceType::discrete, 4 * kGiB, spaces, 256)}};
      const auto m =
          Model::load_on(d, tiny::open(tiny::make("bert", 3), folder), {.gpu_layers = count, .compute = Compute::float32}, {}, cancel);
      std::vector<float> found(40 * tiny::kHidden), classes(40 * tiny::kLabels);
      encode(m->runtime(Task::vectors), texts, found, tiny::kHidden, false, 0, {}, cancel);
      encode(m->runtime(Task::labels), texts, classes, tiny::kLabels, false, 0, {}, cancel);
      if (expected.empty()) expected = found, expected_classes = classes;
      expect_near(found, expected);
      expect_near(classes, expected_classes);
    }
  }
}

}  // namespace
}  // namespace pumice::engine::placement_test
