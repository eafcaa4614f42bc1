// Tests of ropes whose frequencies depend on the length of a text. They check which keys are computed anew when a text
// grows, and which pages texts may share. Nothing else, such as the batch or the page budget, may change a token.
#include <gtest/gtest.h>

#include "engine/scorer.h"
#include "engine/toy.h"

namespace pumice::engine::rope_length_test {
namespace {

using toy::text;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kOriginal = 64;
const RopeTable kLongrope{.inv_freq = {1}, .original = kOriginal, .long_inv_freq = {0.5f}};
const RopeTable kDynamic{.inv_freq = {1}, .original = kOriginal, .base = 10000, .growth = 4};

toy::Model model(const RopeTable& rope, std::int64_t pages = 1000) { return toy::Model(pages, 4096, toy::Toy::Kind::body, 2, {rope}); }

// Returns the ids of a text as the toy model stores them. The stage of longrope depends on the length of the whole text. The stage of
// dynamic NTK depends on the prompt's length and, after the prompt, on the position.
Ids turned(const RopeTable& rope, Ids ids, std::size_t prompt) {
  const bool whole = !rope.long_inv_freq.empty();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t length = whole ? ids.size() : std::max(prompt, i + 1);
    ids[i] += toy::kVocab * static_cast<std::int32_t>(rope.stage(static_cast<std::int64_t>(length)));
  }
  return ids;
}

Ids continued(const RopeTable& rope, const Ids& prompt, std::size_t count) {
  Ids ids = prompt;
  while (ids.size() < prompt.size() + count) ids.push_back(toy::next_token(turned(rope, ids, prompt.size())));
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()};
}

std::vector<Ids> run(Request& g, std::int32_t max_steps) {
  std::vector<Ids> results(static_cast<std::size_t>(g.sequences()));
  while (!g.done()) {
    for (const News& n : toy::advance(g, max_steps)) {
      Ids& ids = results[static_cast<std::size_t>(n.sequence)];
      ids.insert(ids.end(), n.ids.begin(), n.ids.end());
    }
  }
  return results;
}
std::vector<Ids> run(toy::Model& m, const std::vector<Ids>& prompts, std::int64_t tokens, std::int32_t max_steps = 1000) {
  const auto g = m.scheduler->request(prompts, {.max_new_tokens = tokens});
  return run(*g, max_steps);
}

class RopeLength : public testing::TestWithParam<RopeTable> {};

TEST_P(RopeLength, AloneAndInBatches) {
  const RopeTable& rope = GetParam();
  std::vector<Ids> prompts;
  for (const std::size_t length : {1u, 20u, 31u, 34u, 63u, 64u, 65u, 66u, 200u, 5u, 64u}) prompts.push_back(text(length % 3, length));
  for (const std::int64_t pages : {16, 40, 1000}) {
    for (const std::int32_t steps : {1, 1000}) {
      toy::Model m = model(rope, pages);
      const auto batch = run(m, prompts, 40, steps);
      for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(batch[i], continued(rope, prompts[i], 40)) << pages << ", " << i;
      EXPECT_EQ(m.leaked(), 0);
    }
  }
  for (const Ids& prompt : prompts) {
    toy::Model m = model(rope);
    EXPECT_EQ(run(m, {prompt}, 40, 3)[0], continued(rope, prompt, 40));
    const bool crosses = !rope.long_inv_freq.empty() && prompt.size() <= kOriginal && prompt.size() + 39 > kOriginal;
    EXPECT_EQ(m.seen->rows, static_cast<std::int64_t>(prompt.size()) + 39 + (crosses ? kOriginal : 0))
        << "rows computed, " << prompt.size();
  }
}

TEST_P(RopeLength, SamplesOfOnePrompt) {
  const RopeTable& rope = GetParam();
  for (const std::size_t length : {50u, 64u, 70u}) {
    toy::Model m = model(rope), fresh = model(rope);
    GenerateParams params{.max_new_tokens = 30, .n = 3};
    params.sampling.temperature = 1.2f;
    params.sampling.seed = 4;
    const Ids prompt = text(1, length);
    const auto together = m.scheduler->request({prompt}, params);
    params.n = 1;
    const auto apart = fresh.scheduler->request({prompt, prompt, prompt}, params);
    const auto samples = run(*together, 2);
    EXPECT_EQ(samples, run(*apart, 7));
    EXPECT_NE(samples[0], samples[1]);
    EXPECT_EQ(m.leaked(), 0);
  }
}

TEST_P(RopeLength, PrefixesAreSharedAmongTextsThatTurnAlike) {
  const RopeTable& rope = GetParam();
  const bool longrope = !rope.long_inv_freq.empty();
  toy::Model m = model(rope);
  const auto reused = [&](const Ids& prompt) {
    const auto g = m.scheduler->request({prompt}, {.max_new_tokens = 3});
    EXPECT_EQ(run(*g, 1000)[0], continued(rope, prompt, 3)) << prompt.size();
    return g->reused_tokens()[0];
  };
  const Ids history = text(2, 300);
  const auto first = [&](std::size_t count) { return Ids(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(count)); };
  EXPECT_EQ(reused(first(60)), 0);
  EXPECT_EQ(reused(first(100)), 0) << "a long text shares no keys with a short one";
  EXPECT_EQ(reused(first(64)), 60);
  EXPECT_EQ(reused(first(130)), longrope ? 100 : 0);
  EXPECT_EQ(reused(first(130)), 129);
  EXPECT_EQ(reused(first(50)), 49);
  EXPECT_EQ(m.leaked(), 0);
}

TEST_P(RopeLength, PagesTakenFromAParkedSequence) {
  const RopeTable& rope = GetParam();
  toy::Model m = model(rope, 6);
  const Ids one = text(7, 50), two = text(8, 90);
  const auto slow = m.scheduler->request({one}, {.max_new_tokens = 60});
  Ids got;
  while (!slow->done()) {
    for (const News& n : toy::advance(*slow, 9)) got.insert(got.end(), n.ids.begin(), n.ids.end());
    EXPECT_EQ(run(m, {two}, 40)[0], continued(rope, two, 40));  // takes nearly all pages, those of the parked sequence too
  }
  EXPECT_EQ(got, continued(rope, one, 60));
  EXPECT_EQ(m.leaked(), 0);
}

TEST_P(RopeLength, WholeTextsAreScoredByTheirOwnLength) {
  const RopeTable& rope = GetParam();
  toy::Model m = model(rope);
  for (const std::size_t length : {10u, 64u, 65u, 300u, 66u, 300u}) {
    const Ids ids = text(5, length), keys = turned(rope, ids, length);
    std::vector<float> last(toy::kVocab), all(length * toy::kVocab);
    logits(*m.scheduler, ids, false, last, m.cancel);
    EXPECT_EQ(last, toy::logits_after(keys)) << length;
    logits(*m.scheduler, ids, true, all, m.cancel);
    for (const std::size_t at : {std::size_t{0}, length / 2, length - 1}) {
      const auto row = toy::logits_after(std::span(keys).first(at + 1));
      EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + static_cast<std::ptrdiff_t>(at * toy::kVocab))) << length << ", " << at;
    }
    run(m, {ids}, 20);
    EXPECT_EQ(m.leaked(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, RopeLength, testing::Values(kLongrope, kDynamic),
                         [](const auto& kind) { return kind.param.long_inv_freq.empty() ? "dynamic" : "longrope"; });

}  // namespace
}  // namespace pumice::engine::rope_length_test
