#include "engine/generator.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "engine/toy.h"

namespace pumice::engine {
namespace {

using toy::continuation;
using toy::text;
using Ids = std::vector<std::int32_t>;

struct Result {
  Ids ids;
  Finish finish = Finish::none;
  std::vector<float> logprobs;
  Ids top_ids;
};

void take(std::vector<Result>& results, const std::vector<News>& news) {
  for (const News& n : news) {
    Result& r = results.at(static_cast<std::size_t>(n.sequence));
    EXPECT_EQ(r.finish, Finish::none) << "news after the end";
    r.ids.insert(r.ids.end(), n.ids.begin(), n.ids.end());
    r.logprobs.insert(r.logprobs.end(), n.logprobs.begin(), n.logprobs.end());
    r.top_ids.insert(r.top_ids.end(), n.top_ids.begin(), n.top_ids.end());
    r.finish = n.finish;
  }
}

std::vector<Result> run(toy::Model& m, Generator& g, std::int32_t max_steps = 1000) {
  std::vector<Result> results(static_cast<std::size_t>(g.sequences()));
  for (int calls = 0; !g.done(); ++calls) {
    EXPECT_LT(calls, 100000);
    take(results, g.advance(max_steps, 1e9, m.cancel));
  }
  return results;
}

std::vector<Result> run(toy::Model& m, const std::vector<Ids>& prompts, const GenerateParams& params, std::int32_t max_steps = 1000) {
  Generator g(m.runtime, prompts, params);
  return run(m, g, max_steps);
}

GenerateParams greedy(std::int64_t tokens) { return {.max_new_tokens = tokens}; }

GenerateParams sampled(std::int64_t tokens, std::uint64_t seed) {
  GenerateParams p{.max_new_tokens = tokens};
  p.sampling.temperature = 1.2f;
  p.sampling.top_p = 0.95f;
  p.sampling.repetition_penalty = 1.1f;
  p.sampling.seed = seed;
  return p;
}

TEST(Generator, GreedyIsTheModelsOwnContinuation) {
  toy::Model m;
  for (const std::size_t length : {1u, 2u, 31u, 32u, 33u, 64u, 127u, 128u, 129u, 300u, 1200u}) {
    const Ids prompt = text(length, length);
    const auto results = run(m, {prompt}, greedy(70), 3);
    EXPECT_EQ(results[0].ids, continuation(prompt, 70)) << length;
    EXPECT_EQ(results[0].finish, Finish::length);
    EXPECT_EQ(m.leaked(), 0);
  }
}

TEST(Generator, BatchesEqualSingles) {
  std::vector<Ids> prompts;
  for (std::size_t i = 0; i < 40; ++i) prompts.push_back(text(i % 7, 1 + (i * 53) % 400));  // many with common beginnings
  for (const std::int64_t pages : {25, 60, 2000}) {
    toy::Model m(pages);
    const auto batch = run(m, prompts, greedy(50), 7);
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(batch[i].ids, continuation(prompts[i], 50)) << pages << ", " << i;
    EXPECT_EQ(m.leaked(), 0);
    EXPECT_EQ(m.pool->stats().pages_evicted > 0, pages < 2000);
  }
}

TEST(Generator, SampledTokensDoNotDependOnBatchOrBudget) {
  std::vector<Ids> prompts;
  for (std::size_t i = 0; i < 12; ++i) prompts.push_back(text(i, 20 + i * 17));
  toy::Model roomy, tight(18);
  const auto batch = run(roomy, prompts, sampled(60, 5));
  const auto squeezed = run(tight, prompts, sampled(60, 5), 1);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    toy::Model alone;
    EXPECT_EQ(run(alone, {prompts[i]}, sampled(60, 5))[0].ids, batch[i].ids);
    EXPECT_EQ(squeezed[i].ids, batch[i].ids);
  }
  EXPECT_NE(run(roomy, {prompts[0]}, sampled(60, 6))[0].ids, batch[0].ids);
  EXPECT_EQ(tight.leaked(), 0);
}

TEST(Generator, EqualPromptsAndForksGetStreamsOfTheirOwn) {
  toy::Model m;
  const Ids prompt = text(3, 45);
  auto params = sampled(40, 9);
  const auto twice = run(m, {prompt, prompt, prompt}, params);
  params.n = 3;
  const std::int64_t before = m.seen->rows;
  const int copies = m.store->copies;
  toy::Model fresh;
  const auto forks = run(fresh, {prompt}, params);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(forks[i].ids, twice[i].ids);
  EXPECT_NE(forks[0].ids, forks[1].ids);
  EXPECT_NE(forks[1].ids, forks[2].ids);
  EXPECT_EQ(fresh.seen->rows, 45 + 3 * 39);  // the prompt is computed once
  EXPECT_EQ(fresh.store->copies, 2);
  EXPECT_EQ(before, m.seen->rows);
  EXPECT_EQ(copies, m.store->copies);
  EXPECT_EQ(fresh.leaked(), 0);

  params.n = 5;
  toy::Model tight(7);  // not all five fit at once
  const auto five = run(tight, {prompt, text(4, 64)}, params, 3);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(five[i].ids, twice[i].ids);
  toy::Model roomy;
  const auto again = run(roomy, {prompt, text(4, 64)}, params);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(five[i].ids, again[i].ids);
  EXPECT_EQ(tight.leaked(), 0);
}

TEST(Generator, ReusesHistoryAndSaysSo) {
  toy::Model m;
  const Ids prompt = text(1, 23);
  Ids history = prompt;
  std::int64_t reused = 0, tokens = 0;
  for (int turn = 0; turn < 6; ++turn) {
    Generator g(m.runtime, {history}, greedy(30));
    const auto result = run(m, g)[0];
    EXPECT_EQ(result.ids, continuation(history, 30));
    // All but the last sampled token and the new question are there.
    EXPECT_EQ(g.reused_tokens()[0], turn == 0 ? 0 : static_cast<std::int32_t>(history.size()) - 8);
    EXPECT_EQ(g.prompt_tokens()[0], static_cast<std::int32_t>(history.size()));
    reused += g.reused_tokens()[0];
    tokens += g.prompt_tokens()[0];
    history.insert(history.end(), result.ids.begin(), result.ids.end());
    for (const std::int32_t id : text(100 + turn, 7)) history.push_back(id);
  }
  EXPECT_EQ(m.pool->stats().prompt_tokens, static_cast<std::uint64_t>(tokens));
  EXPECT_EQ(m.pool->stats().reused_tokens, static_cast<std::uint64_t>(reused));
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Generator, SharesAPrefixInsideOneBatch) {
  toy::Model m;
  const Ids common = text(1, 320);
  std::vector<Ids> prompts;
  for (std::int32_t i = 0; i < 20; ++i) {
    prompts.push_back(common);
    for (const std::int32_t id : text(50 + i, 10)) prompts.back().push_back(id);
  }
  Generator g(m.runtime, prompts, greedy(1));
  const auto results = run(m, g);
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(results[i].ids, continuation(prompts[i], 1));
  EXPECT_LE(m.seen->rows, 330 + 19 * 10);  // 6600 without sharing
}

TEST(Generator, FinishesByEosAndLength) {
  toy::Model m(1000, 100);
  const Ids prompt = text(1, 40);
  const Ids full = continuation(prompt, 30);
  GenerateParams params = greedy(30);
  params.eos_ids = {full[12], 205};
  const auto at = static_cast<std::size_t>(std::find(full.begin(), full.end(), full[12]) - full.begin());
  params.sampling.logprobs = 3;
  const auto result = run(m, {prompt}, params)[0];
  EXPECT_EQ(result.finish, Finish::eos);
  EXPECT_EQ(result.ids, Ids(full.begin(), full.begin() + static_cast<std::ptrdiff_t>(at)));
  EXPECT_EQ(result.logprobs.size(), at);
  ASSERT_EQ(result.top_ids.size(), 3 * at);
  for (std::size_t i = 0; i < at; ++i) EXPECT_EQ(result.top_ids[3 * i], result.ids[i]);

  const auto limited = run(m, {prompt}, greedy(1000))[0];
  EXPECT_EQ(limited.finish, Finish::length);
  EXPECT_EQ(limited.ids, continuation(prompt, 60));  // the context of 100 is full

  toy::Model small(2, 1000);
  EXPECT_EQ(run(small, {prompt}, greedy(1000))[0].ids, continuation(prompt, 24));  // the budget is the context
  EXPECT_EQ(small.leaked(), 0);
}

TEST(Generator, FirstTokenCanEndAllForks) {
  toy::Model m;
  const Ids prompt = text(1, 40);
  GenerateParams params = greedy(30);
  params.n = 4;
  params.eos_ids = {toy::next_token(prompt)};
  for (const Result& r : run(m, {prompt}, params)) {
    EXPECT_TRUE(r.ids.empty());
    EXPECT_EQ(r.finish, Finish::eos);
  }
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Generator, CancelThenContinueGivesTheSameTokens) {
  const std::vector<Ids> prompts = {text(1, 200), text(2, 33), text(3, 90)};
  auto params = sampled(40, 3);
  params.n = 2;
  toy::Model undisturbed;
  const auto expected = run(undisturbed, prompts, params);
  std::mt19937 random(1);
  toy::Model m(30);
  Cancel* current = nullptr;
  m.seen->in_run = [&] {
    if (random() % 3 == 0) current->request();
  };
  Generator g(m.runtime, prompts, params);
  std::vector<Result> results(6);
  int cancelled = 0;
  while (!g.done()) {
    Cancel cancel;
    current = &cancel;
    try {
      take(results, g.advance(5, 1e9, cancel));
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::cancelled);
      ++cancelled;
    }
  }
  EXPECT_GT(cancelled, 10);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(results[i].ids, expected[i].ids) << i;
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Generator, AbandonedAndFinishedSequencesGiveTheirPagesBack) {
  toy::Model m;
  const Ids prompt = text(1, 100);
  auto params = greedy(50);
  params.n = 3;
  {
    Generator g(m.runtime, {prompt, text(2, 500)}, params);
    g.advance(1, 0, m.cancel);
    EXPECT_GT(m.pool->stats().pages_in_use, 0);
  }
  EXPECT_EQ(m.leaked(), 0);
  EXPECT_EQ(m.pool->cached_tokens(prompt), 99);  // and what they computed is kept
  {
    Generator g(m.runtime, {text(5, 300)}, params);
    g.finish(0);  // before it computed anything: the next one takes its place
    std::vector<Result> results(3);
    take(results, g.advance(3, 1e9, m.cancel));
    g.finish(2);
    while (!g.done()) take(results, g.advance(1000, 1e9, m.cancel));
    EXPECT_TRUE(results[0].ids.empty());
    EXPECT_EQ(results[1].ids, continuation(text(5, 300), 50));
    EXPECT_EQ(results[2].ids, continuation(text(5, 300), 3));
    EXPECT_EQ(g.advance(1, 1, m.cancel).size(), 0u);
  }
  EXPECT_EQ(m.leaked(), 0);
  Generator g(m.runtime, {prompt}, greedy(50));
  g.advance(2, 1e9, m.cancel);
  g.close();
  EXPECT_TRUE(g.done());
  EXPECT_EQ(m.leaked(), 0);
  g.close();
  EXPECT_TRUE(Generator(m.runtime, {}, params).done());
}

// Two streams in turns on one thread, with a budget for one: neither can wait for the other.
TEST(Generator, StreamsInTurnsShareATinyBudget) {
  toy::Model m(6);
  const Ids a = text(1, 90), b = text(2, 120);
  Generator first(m.runtime, {a}, greedy(60)), second(m.runtime, {b}, greedy(60));
  std::vector<Result> results(2);
  while (!first.done() || !second.done()) {
    std::vector<Result> one(1), two(1);
    take(one, first.advance(1, 0, m.cancel));
    take(two, second.advance(1, 0, m.cancel));
    EXPECT_LE(one[0].ids.size(), 1u);
    results[0].ids.insert(results[0].ids.end(), one[0].ids.begin(), one[0].ids.end());
    results[1].ids.insert(results[1].ids.end(), two[0].ids.begin(), two[0].ids.end());
  }
  EXPECT_EQ(results[0].ids, continuation(a, 60));
  EXPECT_EQ(results[1].ids, continuation(b, 60));
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Generator, ManyThreadsOnOneModel) {
  for (const std::int64_t pages : {12, 500}) {
    toy::Model m(pages);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (std::uint64_t t = 0; t < 12; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t round = 0; round < 3; ++round) {
          const Ids prompt = text(t % 5, 30 + 20 * t), other = text(round, 50);
          const auto results = run(m, {prompt, other}, greedy(25), 4);
          if (results[0].ids != continuation(prompt, 25) || results[1].ids != continuation(other, 25)) ++wrong;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(m.leaked(), 0);
  }
}

TEST(Generator, StepsAndTimeAreLimits) {
  toy::Model m;
  Generator g(m.runtime, {text(1, 10), text(2, 700)}, greedy(100));
  for (const News& news : g.advance(5, 1e9, m.cancel)) EXPECT_LE(news.ids.size(), 5u);
  std::size_t most = 0;
  for (const News& news : g.advance(1000, 0, m.cancel)) most = std::max(most, news.ids.size());
  EXPECT_EQ(most, 1u);  // time was up, but not before there was news
  run(m, g);
  const Timings t = g.timings();
  EXPECT_EQ(t.prefill_tokens, 710);
  EXPECT_EQ(t.decode_tokens, 2 * 99);
  EXPECT_GT(t.prefill_seconds, 0);
  EXPECT_GT(t.decode_seconds, 0);
  EXPECT_LE(m.seen->most_rows, 514);
}

TEST(Generator, WideBatchesKeepTheirLogitsInBlocks) {
  toy::Model m(4000);
  std::vector<Ids> prompts;
  for (std::size_t i = 0; i < 300; ++i) prompts.push_back(text(i, 5));
  const auto results = run(m, prompts, greedy(6));
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(results[i].ids, continuation(prompts[i], 6));
  EXPECT_LE(m.seen->most_head_rows, 128);
  EXPECT_GT(m.seen->parallel, 0);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Generator, RefusesWhatCannotBe) {
  toy::Model m(4, 200);
  const auto refused = [&](const std::vector<Ids>& prompts, const GenerateParams& params, ErrorKind kind, std::vector<const char*> parts) {
    std::string message;
    EXPECT_EQ(toy::error_of([&] { Generator(m.runtime, prompts, params); }, &message), kind) << message;
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused({text(1, 5), {}}, greedy(5), ErrorKind::invalid_argument, {"prompt 1"});
  refused({{1, 2, toy::kVocab}}, greedy(5), ErrorKind::invalid_argument, {"prompt 0", "token 2", "211", "210"});
  refused({{-1}}, greedy(5), ErrorKind::invalid_argument, {"-1"});
  refused({text(1, 200)}, greedy(5), ErrorKind::context_length, {"200", "n_ctx="});
  refused({text(1, 128)}, greedy(5), ErrorKind::out_of_memory, {"129", "5 cache pages", "kv_budget="});
  refused({text(1, 5)}, greedy(0), ErrorKind::invalid_argument, {"max_new_tokens"});
  auto params = greedy(5);
  params.n = 0;
  refused({text(1, 5)}, params, ErrorKind::invalid_argument, {"n must"});
  params.n = 1, params.eos_ids = {toy::kVocab};
  refused({text(1, 5)}, params, ErrorKind::invalid_argument, {"eos"});
  params.eos_ids = {}, params.sampling.temperature = -1;
  refused({text(1, 5)}, params, ErrorKind::invalid_argument, {"temperature"});
  toy::Model encoder(0, 100, toy::Toy::Kind::pooled);
  EXPECT_EQ(toy::error_of([&] { Generator(encoder.runtime, {text(1, 5)}, greedy(5)); }), ErrorKind::invalid_argument);
  EXPECT_EQ(run(m, {text(1, 127)}, greedy(5))[0].ids, continuation(text(1, 127), 1));
}

}  // namespace
}  // namespace pumice::engine
