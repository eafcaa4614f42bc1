// Tests of the tables of spans (vulkan/tables.h): which rows a group of Conv or Scan computes, where it finds the rows or the state before
// them, and which states it saves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "cases.h"
#include "vulkan/plan.h"
#include "vulkan/tables.h"

namespace pumice::vulkan {
namespace {

// A batch whose segments have random lengths, states and saves.
struct RandomBatch {
  RandomBatch(cases::Random& random, std::int64_t segments_below, std::int64_t rows_below) {
    const std::int64_t count = 1 + random.below(segments_below);
    saves.resize(static_cast<std::size_t>(count));
    std::int32_t next_state = 1000;
    for (std::vector<SavedState>& of_segment : saves) {
      const auto rows = static_cast<std::int32_t>(1 + random.below(rows_below));
      const std::int64_t every = 1 + random.below(2 * rows_below);
      for (std::int32_t row = 1; row <= rows; ++row)
        if (random.below(every) == 0) of_segment.push_back({row, next_state++});
      const auto past = static_cast<std::int32_t>(random.below(3));
      const auto number = static_cast<std::int32_t>(segments.size());
      segments.push_back({.first = batch.rows, .rows = rows, .past = past, .state = past > 0 ? number : -1, .saves = of_segment});
      batch.rows += rows;
    }
    batch.segments = segments;
  }
  std::vector<std::vector<SavedState>> saves;
  std::vector<Segment> segments;
  Batch batch;
};

// Checks the table of one shape against the batch.
void check(const SpanShape& shape, const RandomBatch& random) {
  const Program program;
  const ProgramFacts facts;
  const SpanShape shapes[] = {shape};
  TableRequest request{
      .program = program, .facts = facts, .ropes = {}, .temperatures = {}, .attends = {}, .distances = {}, .spans = shapes};
  Tables tables;
  tables.build(request, random.batch);
  std::int64_t next = 0;  // the row of the batch that the next span must begin with
  std::size_t s = 0;      // its segment
  std::size_t saved = 0;  // how many saves of this segment earlier spans have
  for (const SpanBlock& block : tables.spans.at(0)) {
    ASSERT_EQ(block.first, next);
    ASSERT_GE(block.rows, 1);
    ASSERT_LE(block.rows, shape.block_rows);
    std::map<std::size_t, int> spans_of;  // by segment
    for (std::size_t i = 0; i < block.spans; ++i) {
      const std::uint32_t* span = tables.words().data() + block.spans_at + params::kSpanWords * i;
      const Segment& segment = random.segments.at(s);
      const std::int64_t row = next - segment.first, rows = span[1];
      ASSERT_EQ(span[0], next - block.first);
      ASSERT_TRUE(rows >= 1 && rows <= shape.rows && row + rows <= segment.rows);
      ASSERT_EQ(span[2], row);
      ASSERT_EQ(span[3], segment.rows - row - rows);
      const bool continues = shape.stateful && segment.state >= 0 && row < shape.reach;
      ASSERT_EQ(span[4], continues ? static_cast<std::uint32_t>(segment.state) : params::kNoState);
      std::vector<std::pair<std::uint32_t, std::uint32_t>> found, expected;
      for (std::uint32_t n = 0; n < span[6]; ++n) {
        const std::uint32_t* save = tables.words().data() + span[5] + 2 * n;
        found.emplace_back(save[0], save[1]);
      }
      for (; shape.stateful && saved < segment.saves.size() && segment.saves[saved].rows <= row + rows; ++saved)
        expected.emplace_back(segment.saves[saved].rows, segment.saves[saved].state);
      ASSERT_EQ(found, expected);
      ++spans_of[s];
      next += rows;
      if (row + rows == segment.rows) ++s, saved = 0;
    }
    ASSERT_EQ(next, block.first + block.rows);
    if (!shape.chained) continue;
    // A block has two sets of carried matrices, one to read and one to write. So only its first segment may come from the block before,
    // only its last may go on, and no segment has two spans.
    for (const auto& [segment, count] : spans_of) ASSERT_EQ(count, 1) << segment;
  }
  ASSERT_EQ(next, random.batch.rows);
  ASSERT_EQ(s, random.segments.size());
}

TEST(Spans, CoverEachRowOnceAndHaveItsStateAndItsSaves) {
  cases::Random random(31);
  for (int trial = 0; trial < 400; ++trial) {
    const RandomBatch batch(random, trial % 2 == 0 ? 4 : 40, trial % 3 == 0 ? 300 : 20);
    const std::int64_t block_rows = 1 + random.below(trial % 5 == 0 ? 1000 : 50);
    check({.rows = 1 + random.below(20), .block_rows = block_rows, .reach = random.below(8), .stateful = true}, batch);
    check({.rows = 1 + random.below(60), .block_rows = block_rows, .reach = 1, .chained = true, .stateful = true}, batch);
    check({.rows = 1 + random.below(60), .block_rows = block_rows, .reach = 1, .chained = true, .stateful = false}, batch);
    if (HasFailure()) FAIL() << "trial " << trial;
  }
}

// The recorder cannot cut a group, so the plan bounds the rows that a group of Scan goes through. A row takes its time however narrow the
// head is: with one column and no bound, a group would go through 262,144 rows, which takes far longer than a submission of 10 ms.
TEST(Spans, OfScanAreShortForHeadsOfEverySize) {
  for (const bool software : {false, true}) {
    for (const std::int32_t dim : {1, 8, 32, 128, 1024}) {
      PhysicalDevice device;
      device.limits.range = std::uint64_t{1} << 27;
      device.type = software ? DeviceType::software : DeviceType::discrete;
      Program program{.name = "scan", .slots = {{Rows::tokens, 3 * dim + 1}, {Rows::tokens, dim}}, .input = 0, .output = 1};
      program.ops = {Scan{.q = {0, 0, dim},
                          .k = {0, dim, dim},
                          .v = {0, 2 * dim, dim},
                          .step = {0, 3 * dim, 1},
                          .out = {1, 0, dim},
                          .rate = VectorId{0},
                          .key_heads = 1,
                          .key_dim = dim,
                          .value_dim = dim,
                          .rule = ScanRule::ssd}};
      const GpuPlan plan = make_plan(program, {.vectors = {{"rate", 1}}}, {}, device);
      ASSERT_EQ(plan.spans.size(), 1u);
      const std::int64_t rows = plan.spans[0].rows;
      EXPECT_GE(rows, 32);
      EXPECT_LE(rows, software ? 1024 : 8192) << dim;
      EXPECT_LE(rows * dim, software ? 1 << 15 : 1 << 18) << dim;
    }
  }
}

}  // namespace
}  // namespace pumice::vulkan
