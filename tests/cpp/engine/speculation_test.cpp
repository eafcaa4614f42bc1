#include "engine/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "engine/toy.h"
#include "patience.h"

namespace pumice::engine {
namespace {

using toy::text;
using Ids = std::vector<std::int32_t>;

Ids looked_up(const Ids& ids, std::int32_t matching, std::size_t most) {
  Ids guesses;
  look_up(ids, matching, most, guesses);
  return guesses;
}

TEST(LookUp, FindsWhatFollowedTheLongestAndLatestMatch) {
  EXPECT_EQ(looked_up({1, 2, 3, 4, 9, 2, 3}, 2, 3), (Ids{4, 9, 2}));
  EXPECT_EQ(looked_up({7, 3, 5, 1, 3, 6, 2, 3}, 1, 1), (Ids{6}));        // the latest match counts
  EXPECT_EQ(looked_up({2, 3, 5, 1, 4, 3, 6, 2, 3}, 1, 2), (Ids{5, 1}));  // the longest match counts
  EXPECT_EQ(looked_up({2, 3, 5, 4, 3, 6, 2, 3}, 3, 2), Ids{});           // a match of two ids is too short
  EXPECT_EQ(looked_up({1, 2, 1, 2}, 2, 7), (Ids{1, 2, 1, 2, 1, 2, 1}));  // the guesses reach the end, so they repeat
  EXPECT_EQ(looked_up({5, 5, 5}, 2, 4), (Ids{5, 5, 5, 5}));
  EXPECT_EQ(looked_up({5}, 1, 4), Ids{});
}

TEST(StepCost, IsTheLineThroughWhatWasSeen) {
  StepCost cost;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const int rows = 1 + static_cast<int>(random() % 9);
    cost.saw(rows, 0.010 + 0.002 * rows);
  }
  EXPECT_NEAR(cost.row(), 0.002, 1e-5);
  EXPECT_NEAR(cost.step(5), 0.020, 1e-5);
  StepCost flat;
  flat.saw(1, 0.004);
  EXPECT_NEAR(flat.step(1), 0.004, 1e-9);
  EXPECT_GT(flat.row(), 0);
}

// Guesses that are seldom right must cost at most 3 % of the time of 200 tokens. Guesses that are always right must save more than half.
TEST(Guesses, CostLittleWhereNoneIsRight) {
  for (const double right : {0.0, 0.05, 1.0}) {
    StepCost cost;
    for (int i = 0; i < 50; ++i) cost.saw(1 + i % 5, 3 + (1 + i % 5));
    Guesses guesses;
    std::mt19937 random(2);
    double paid = 0, tokens = 0, steps = 0;
    for (; tokens < 200; ++steps) {
      const std::int32_t count = guesses.wanted(cost, 1, 0, 8);
      std::size_t accepted = 0;
      while (accepted < static_cast<std::size_t>(count) && std::uniform_real_distribution<>(0, 1)(random) < right) ++accepted;
      const double price = count * cost.row();
      guesses.saw(cost, 1, static_cast<std::size_t>(count), accepted, price);
      paid += price;
      tokens += 1 + static_cast<double>(accepted);
    }
    const double spared = (tokens - steps) * cost.step(1), all = tokens * cost.step(1);
    EXPECT_LE(paid - spared, 0.03 * all) << right;
    if (right == 1) {
      EXPECT_GT(spared - paid, 0.5 * all);
    }
  }
}

// ---------------------------------------------------------------- a toy's sequences
struct Answer {
  std::vector<Ids> ids;
  std::vector<std::vector<float>> logprobs;
  Timings timings;
};

Answer answer(toy::Model& m, const std::vector<Ids>& prompts, const GenerateParams& params) {
  const auto request = m.scheduler->request(prompts, params);
  Answer all;
  all.ids.resize(static_cast<std::size_t>(request->sequences()));
  all.logprobs.resize(all.ids.size());
  while (!request->done()) {
    for (const News& news : toy::advance(*request, 3)) {
      auto& ids = all.ids[static_cast<std::size_t>(news.sequence)];
      ids.insert(ids.end(), news.ids.begin(), news.ids.end());
      auto& logprobs = all.logprobs[static_cast<std::size_t>(news.sequence)];
      logprobs.insert(logprobs.end(), news.logprobs.begin(), news.logprobs.end());
    }
  }
  all.timings = request->timings();
  EXPECT_EQ(m.leaked(), 0);
  return all;
}

// Returns a draft that is right most of the time: the ids that sequences generate, with about one in `one_in` changed (0: none).
std::vector<Ids> with_errors(std::vector<Ids> said, int one_in, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (Ids& ids : said)
    for (auto& id : ids)
      if (one_in > 0 && random() % static_cast<std::uint64_t>(one_in) == 0) id = (id + 1) % toy::kVocab;
  return said;
}

TEST(Speculation, SaysWhatIsSaidWithout) {
  std::mt19937_64 random(7);
  std::int64_t accepted = 0, drafted = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<Ids> prompts;
    for (std::uint64_t i = 0; i < 1 + random() % 7; ++i) prompts.push_back(text(random() % 40, 1 + random() % 90));
    GenerateParams params{.max_new_tokens = static_cast<std::int64_t>(1 + random() % 80), .n = static_cast<std::int32_t>(1 + random() % 3)};
    SamplingParams& s = params.sampling;
    s.seed = trial;
    if (trial % 3) s.temperature = 0.5f + 0.2f * static_cast<float>(trial % 5);
    if (trial % 4 == 1) s.top_k = 5;
    if (trial % 4 == 2) s.repetition_penalty = 1.3f, s.frequency_penalty = 0.4f;
    if (trial % 5 == 3) s.logprobs = 2;
    params.eos_ids = {static_cast<std::int32_t>(random() % toy::kVocab)};
    const std::int64_t pages = trial % 6 == 5 ? 9 : 1000;  // with nine, sequences are preempted and begin again
    toy::Model plain(pages), guessing(pages);
    const Answer wanted = answer(plain, prompts, params);
    params.speculation.replay = with_errors(wanted.ids, static_cast<int>(random() % 6), random());
    params.speculation.most = static_cast<std::int32_t>(1 + random() % 12);
    params.speculation.always = trial % 2 == 0;
    const Answer found = answer(guessing, prompts, params);
    ASSERT_EQ(found.ids, wanted.ids) << trial;
    ASSERT_EQ(found.logprobs, wanted.logprobs) << trial;
    ASSERT_LE(found.timings.accepted_tokens, found.timings.drafted_tokens);
    if (pages == 1000) {  // no sequence began again
      ASSERT_EQ(found.timings.decode_tokens, wanted.timings.decode_tokens) << trial;
    }
    accepted += found.timings.accepted_tokens;
    drafted += found.timings.drafted_tokens;
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(drafted, accepted);
}

TEST(Speculation, TakesFewerSteps) {
  toy::Model plain, guessing;
  GenerateParams params{.max_new_tokens = 90};
  const Answer wanted = answer(plain, {text(1, 20)}, params);
  params.speculation = {.most = 8, .always = true, .replay = wanted.ids};
  const Answer found = answer(guessing, {text(1, 20)}, params);
  EXPECT_EQ(found.ids, wanted.ids);
  EXPECT_LE(guessing.seen->runs, 12);  // one run for the prompt, then nine tokens a run
  EXPECT_EQ(found.timings.accepted_tokens, 79);
  EXPECT_EQ(found.timings.decode_tokens, 89);
}

// A reader that waits for eight steps at a time has 32 unread tokens before, and its sequence sits out the next steps.
TEST(Speculation, AReaderOfSeveralStepsGetsTheTokensOfOneThatSitsOut) {
  for (const bool pumps : {false, true}) {
    toy::Model plain, m;
    GenerateParams params{.max_new_tokens = 200};
    const Answer wanted = answer(plain, {text(1, 20)}, params);
    params.speculation = {.most = 8, .always = true, .replay = wanted.ids};
    params.read_ahead = 32;
    const auto request = m.scheduler->request({text(1, 20)}, params);
    if (pumps) request->start(1, 8);
    Ids ids;
    while (!request->done()) {
      std::vector<News> some;
      if (pumps) {
        for (RequestNews& news : m.scheduler->pump(patience::kPatienceMs)) std::ranges::move(news.news, std::back_inserter(some));
      } else if (request->wait(8, patience::kPatienceMs)) {
        some = request->take();
      }
      ASSERT_FALSE(some.empty()) << "after " << ids.size() << " tokens";
      ids.insert(ids.end(), some[0].ids.begin(), some[0].ids.end());
    }
    EXPECT_EQ(ids, wanted.ids.at(0));
  }
}

TEST(Speculation, ARowOfGuessesThatFailsIsMetAgain) {
  toy::Model m;
  // kPoison gives NaN only as the last token of a prompt. Guesses come after the prompt, so they must never give NaN.
  m.seen->poisonous = true;
  GenerateParams params{.max_new_tokens = 30};
  const Answer wanted = answer(m, {text(4, 10)}, params);
  params.speculation = {.most = 5, .always = true, .replay = {Ids(30, toy::kPoison)}};
  EXPECT_EQ(answer(m, {text(4, 10)}, params).ids, wanted.ids);
}

TEST(Speculation, ASmallerModelGuesses) {
  const auto smaller = std::make_shared<toy::Model>(400);
  const auto drafter = std::make_shared<Drafter>(smaller, *smaller->runtime);
  std::int64_t accepted = 0;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<Ids> prompts;
    for (std::uint64_t i = 0; i < 1 + static_cast<std::uint64_t>(trial) % 5; ++i) prompts.push_back(text(i, 3 + 60 * (trial % 4)));
    GenerateParams params{.max_new_tokens = 60};
    params.sampling.seed = 5;
    if (trial % 2) params.sampling.temperature = 1.5f;
    if (trial % 3 == 1) params.sampling.presence_penalty = 2;
    toy::Model plain, guessing;
    const Answer wanted = answer(plain, prompts, params);
    params.speculation = {.most = 4, .drafter = drafter, .always = trial % 4 != 3};
    const Answer found = answer(guessing, prompts, params);
    ASSERT_EQ(found.ids, wanted.ids) << trial;
    accepted += found.timings.accepted_tokens;
    if (params.speculation.always) {
      // Both models are the same and draw the same random numbers, so every guess must be right.
      ASSERT_EQ(found.timings.accepted_tokens, found.timings.drafted_tokens) << trial;
    }
    EXPECT_EQ(smaller->leaked(), 0);
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Speculation, ASmallerModelWithoutRoomSaysNothing) {
  const auto smaller = std::make_shared<toy::Model>(2);
  const auto drafter = std::make_shared<Drafter>(smaller, *smaller->runtime);
  toy::Model m;
  GenerateParams params{.max_new_tokens = 40, .speculation = {.most = 4, .drafter = drafter, .always = true}};
  const Answer found = answer(m, {text(1, 80), text(2, 30), text(3, 50)}, params);
  EXPECT_EQ(found.ids[0], toy::continuation(text(1, 80), 40));
  EXPECT_EQ(found.ids[1], toy::continuation(text(2, 30), 40));
  EXPECT_EQ(smaller->leaked(), 0);
}

// While guesses hold all pages of the smaller model, a request of that model has to wait. It must go on when the pages are free, although
// nothing else wakes it.
TEST(Speculation, ASmallerModelsOwnCallersGetItsPages) {
  const auto smaller = std::make_shared<toy::Model>(4);
  const auto drafter = std::make_shared<Drafter>(smaller, *smaller->runtime, [&] { smaller->scheduler->pages_came(); });
  std::atomic<bool> inside{false}, go{false};
  smaller->seen->in_run = [&] {
    inside = true;
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  toy::Model m;
  const auto guessed =
      m.scheduler->request({text(1, 90)}, {.max_new_tokens = 10, .speculation = {.most = 4, .drafter = drafter, .always = true}});
  guessed->wait(1, 1e9);
  while (!inside) std::this_thread::yield();
  const auto own = smaller->scheduler->request({text(2, 60)}, {.max_new_tokens = 10});
  EXPECT_FALSE(own->wait(1, 50)) << "guesses have all pages";
  go = true;
  EXPECT_TRUE(own->wait(10, patience::kPatienceMs));
  EXPECT_EQ(own->take().at(0).ids, toy::continuation(text(2, 60), 10));
  guessed->close();
  EXPECT_EQ(m.leaked(), 0);
  EXPECT_EQ(smaller->leaked(), 0);
}

// The last owner of the smaller model is a request that ends with a step. The model must end then, while no lock is held.
TEST(Speculation, ASmallerModelMayEndWithItsLastRequest) {
  toy::Model m;
  std::atomic<bool> inside{false}, go{false};
  m.seen->in_run = [&] {
    inside = true;
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::weak_ptr<toy::Model> smaller;
  {
    const auto owner = std::make_shared<toy::Model>(400);
    smaller = owner;
    const auto drafter = std::make_shared<Drafter>(owner, *owner->runtime);
    const auto other = m.scheduler->request({text(2, 40)}, {.max_new_tokens = 5});
    const auto request = m.scheduler->request({text(1, 40)}, {.max_new_tokens = 50, .speculation = {.most = 4, .drafter = drafter}});
    request->wait(1, 5);
    while (!inside) std::this_thread::yield();
  }
  EXPECT_FALSE(smaller.expired());
  go = true;
  EXPECT_TRUE(patience::wait_until([&] { return smaller.expired(); }));
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Speculation, ClosedInTheMiddle) {
  const auto smaller = std::make_shared<toy::Model>(400);
  const auto drafter = std::make_shared<Drafter>(smaller, *smaller->runtime);
  toy::Model m;
  std::mt19937 random(3);
  for (int trial = 0; trial < 40; ++trial) {
    GenerateParams params{.max_new_tokens = 400, .speculation = {.matching = 2, .most = 4, .drafter = drafter, .always = true}};
    const auto request = m.scheduler->request({text(random() % 9, 40), text(7, 3)}, params);
    for (std::uint32_t i = 0; i < random() % 6; ++i) toy::advance(*request, 1 + static_cast<std::int32_t>(random() % 3));
    if (random() % 2) request->finish(0);
    request->close();
  }
  EXPECT_EQ(m.leaked(), 0);
  EXPECT_EQ(smaller->leaked(), 0);
}

}  // namespace
}  // namespace pumice::engine
