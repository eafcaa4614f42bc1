// Tests of make_plan(): which operations of a program become one step, that is, one dispatch.
#include "vulkan/plan.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace pumice::vulkan::plan_test {
namespace {

constexpr std::int32_t kHead = 8, kKv = 2 * kHead, kWidth = 4 * kHead;
constexpr View kQ{0, 0, kWidth}, kK{0, kWidth, kKv}, kV{0, kWidth + kKv, kKv};

RopeTable table(float first = 1.0f) { return {.inv_freq = {first, 0.5f}}; }
Rope rope(View x, RopeTable by = table()) { return {.x = x, .head_dim = kHead, .table = std::move(by)}; }
Store store(View k = kK, View v = kV) { return {.k = k, .v = v, .cache = CacheId{0}}; }

GpuPlan plan_of(std::vector<Op> ops) {
  PhysicalDevice device;
  device.limits.range = 1 << 20;
  Program program{.name = "plan",
                  .ops = std::move(ops),
                  .slots = {{Rows::tokens, kWidth + 2 * kKv}, {Rows::tokens, kWidth}},
                  .caches = {{2, kHead, kHead}},
                  .input = 0};
  return make_plan(std::move(program), {}, {}, device);
}
std::vector<RopeStore> steps(std::vector<Op> ops) {
  std::vector<RopeStore> found;
  for (const GpuStep& step : plan_of(std::move(ops)).steps) found.push_back(std::get<RopeStore>(step));
  return found;
}

TEST(GpuPlan, RopeOfQAndKAndTheirStoreAreOneStep) {
  for (const std::vector<Op>& ops : {std::vector<Op>{rope(kQ), rope(kK), store()}, std::vector<Op>{rope(kK), rope(kQ), store()}}) {
    const auto found = steps(ops);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].q, kQ);
    EXPECT_EQ(found[0].k, kK);
    EXPECT_EQ(found[0].v, kV);
    EXPECT_EQ(found[0].table, 0);
    EXPECT_EQ(found[0].pages, Pages::cache);
  }
  const auto without_q = steps({rope(kK), store()});
  ASSERT_EQ(without_q.size(), 1u);
  EXPECT_FALSE(without_q[0].q);
  EXPECT_EQ(without_q[0].k, kK);
  EXPECT_EQ(without_q[0].table, 0);
}

TEST(GpuPlan, AnEncodersRopeAndItsKeysAreOneStep) {
  const Attend attend{.q = kQ, .out = {1, 0, kWidth}, .k = kK, .v = kV, .key_dim = kHead, .value_dim = kHead, .kv_heads = 2};
  const GpuPlan plan = plan_of({rope(kQ), rope(kK), attend, attend});
  // The second attention must store its keys again, because the scratch pages of the first may have been reused by then.
  ASSERT_EQ(plan.steps.size(), 4u);
  const auto& kept = std::get<RopeStore>(plan.steps[0]);
  EXPECT_EQ(kept.pages, Pages::kept);
  EXPECT_EQ(kept.q, kQ);
  EXPECT_FALSE(std::get<RopeStore>(plan.steps[2]).q);
  EXPECT_EQ(std::get<RopeStore>(plan.steps[2]).table, -1);
}

TEST(GpuPlan, WhatDoesNotFitStaysApart) {
  // Each of these must keep the operations apart: another rope table for k, a temperature for k, values that are the rotated keys, and Rope
  // of the values in place of the keys.
  EXPECT_EQ(steps({rope(kQ), rope(kK, table(2.0f)), store()}).size(), 2u);
  Rope hot = rope(kK);
  hot.temperature = 0.1f, hot.temperature_length = 4;
  EXPECT_EQ(steps({rope(kQ), hot, store()}).size(), 3u);
  EXPECT_EQ(steps({rope(kQ), rope(kK), store(kK, kK)}).size(), 2u);
  EXPECT_EQ(steps({rope(kQ), rope(kV), store()}).size(), 2u);
  // The second Rope rotates what the first has written, so it must be another step.
  EXPECT_EQ(steps({rope(kK), rope(kK), store()}).size(), 2u);
}

TEST(GpuPlan, ARopeThatTurnsNothingIsNoStepAndATemperatureOne) {
  EXPECT_EQ(steps({rope(kQ, {}), rope(kK, {}), store()}).size(), 1u);
  Rope hot = rope(kQ, {});
  hot.temperature = 0.1f;
  EXPECT_EQ(steps({hot}).size(), 0u);
  hot.temperature_length = 4;
  const auto found = steps({hot, store()});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].temperature, 0);
  EXPECT_EQ(found[0].table, -1);
  Rope both = rope(kQ);
  both.temperature = 0.1f, both.temperature_length = 4;
  EXPECT_EQ(steps({both, rope(kK), store()}).size(), 1u);
}

}  // namespace
}  // namespace pumice::vulkan::plan_test
