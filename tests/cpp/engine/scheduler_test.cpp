#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>

#include "engine/toy.h"
#include "patience.h"

namespace pumice::engine::scheduler_test {
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

std::vector<Result> run(Request& g, std::int32_t steps = 1000) {
  std::vector<Result> results(static_cast<std::size_t>(g.sequences()));
  for (int calls = 0; !g.done(); ++calls) {
    EXPECT_LT(calls, 100000);
    take(results, toy::advance(g, steps));
  }
  return results;
}

std::vector<Result> run(toy::Model& m, const std::vector<Ids>& prompts, const GenerateParams& params, std::int32_t steps = 1000) {
  return run(*m.scheduler->request(prompts, params), steps);
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

TEST(Scheduler, GreedyIsTheModelsOwnContinuation) {
  toy::Model m;
  for (const std::size_t length : {1u, 2u, 31u, 32u, 33u, 64u, 127u, 128u, 129u, 300u, 1200u}) {
    const Ids prompt = text(length, length);
    const auto results = run(m, {prompt}, greedy(70), 3);
    EXPECT_EQ(results[0].ids, continuation(prompt, 70)) << length;
    EXPECT_EQ(results[0].finish, Finish::length);
    EXPECT_EQ(m.leaked(), 0);
  }
}

TEST(Scheduler, BatchesEqualSingles) {
  std::vector<Ids> prompts;
  for (std::size_t i = 0; i < 40; ++i) prompts.push_back(text(i % 7, 1 + (i * 53) % 400));  // many prompts have common beginnings
  for (const std::int64_t pages : {25, 60, 2000}) {
    toy::Model m(pages);
    const auto batch = run(m, prompts, greedy(50), 7);
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(batch[i].ids, continuation(prompts[i], 50)) << pages << ", " << i;
    EXPECT_EQ(m.leaked(), 0);
    EXPECT_EQ(m.pool->stats().pages_evicted > 0, pages < 2000);
  }
}

TEST(Scheduler, SampledTokensDoNotDependOnBatchOrBudget) {
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

TEST(Scheduler, EqualPromptsAndForksGetStreamsOfTheirOwn) {
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
  toy::Model tight(7);  // the pages do not hold all five forks at once
  const auto five = run(tight, {prompt, text(4, 64)}, params, 3);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(five[i].ids, twice[i].ids);
  toy::Model roomy;
  const auto again = run(roomy, {prompt, text(4, 64)}, params);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(five[i].ids, again[i].ids);
  EXPECT_EQ(tight.leaked(), 0);
}

TEST(Scheduler, ReusesHistoryAndSaysSo) {
  toy::Model m;
  const Ids prompt = text(1, 23);
  Ids history = prompt;
  std::int64_t reused = 0, tokens = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const auto g = m.scheduler->request({history}, greedy(30));
    const auto result = run(*g)[0];
    EXPECT_EQ(result.ids, continuation(history, 30));
    // The whole history is cached except the last sampled token and the 7 tokens of the new question.
    EXPECT_EQ(g->reused_tokens()[0], turn == 0 ? 0 : static_cast<std::int32_t>(history.size()) - 8);
    EXPECT_EQ(g->prompt_tokens()[0], static_cast<std::int32_t>(history.size()));
    reused += g->reused_tokens()[0];
    tokens += g->prompt_tokens()[0];
    history.insert(history.end(), result.ids.begin(), result.ids.end());
    for (const std::int32_t id : text(100 + turn, 7)) history.push_back(id);
  }
  EXPECT_EQ(m.pool->stats().prompt_tokens, static_cast<std::uint64_t>(tokens));
  EXPECT_EQ(m.pool->stats().reused_tokens, static_cast<std::uint64_t>(reused));
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, SharesAPrefixInsideOneBatch) {
  toy::Model m;
  const Ids common = text(1, 320);
  std::vector<Ids> prompts;
  for (std::int32_t i = 0; i < 20; ++i) {
    prompts.push_back(common);
    for (const std::int32_t id : text(50 + i, 10)) prompts.back().push_back(id);
  }
  const auto g = m.scheduler->request(prompts, greedy(1));
  const auto results = run(*g);
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(results[i].ids, continuation(prompts[i], 1));
  EXPECT_LE(m.seen->rows, 330 + 19 * 10);  // without sharing it would be 6600 rows
}

TEST(Scheduler, SharesAPrefixAmongCallers) {
  toy::Model m;
  const Ids common = text(1, 320);
  std::vector<std::shared_ptr<Request>> requests;
  for (std::int32_t i = 0; i < 20; ++i) {
    Ids prompt = common;
    for (const std::int32_t id : text(50 + i, 10)) prompt.push_back(id);
    requests.push_back(m.scheduler->request({prompt}, greedy(1)));
  }
  for (const auto& request : requests) request->wait(1, 0);
  for (const auto& request : requests) EXPECT_EQ(run(*request)[0].ids.size(), 1u);
  EXPECT_LE(m.seen->rows, 330 + 19 * 10);
}

TEST(Scheduler, FinishesByEosAndLength) {
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
  EXPECT_EQ(run(small, {prompt}, greedy(1000))[0].ids, continuation(prompt, 24));  // two pages hold 64 tokens, so the context ends there
  EXPECT_EQ(small.leaked(), 0);
}

TEST(Scheduler, FirstTokenCanEndAllForks) {
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

// There are about a thousand requests. Some are closed at random moments, also in the middle of a step, and some fail. The others must get
// the same tokens as alone, and no page may be lost.
TEST(Scheduler, ClosedRequestsHarmNobody) {
  toy::Model m(60);
  m.seen->poisonous = true;
  std::atomic<int> wrong{0}, closed{0}, failed{0};
  m.seen->in_run = [] { std::this_thread::yield(); };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 64; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int round = 0; round < 16; ++round) {
        if (random() % 16 == 0) {
          Ids poisoned = text(1000 + random(), 20 + random() % 50);
          poisoned.push_back(toy::kPoison);
          failed += toy::error_of([&] { run(m, {poisoned}, greedy(20)); }) == ErrorKind::numeric;
          continue;
        }
        const Ids prompt = text(random() % 6, 20 + random() % 150);
        const auto g = m.scheduler->request({prompt}, {.max_new_tokens = 20, .n = 1 + static_cast<std::int32_t>(random() % 3)});
        if (random() % 2) {
          g->wait(1 + static_cast<std::int32_t>(random() % 5), random() % 3);
          if (random() % 2) g->finish(0);
          g->close();
          ++closed;
          continue;
        }
        for (const Result& r : run(*g, 4)) wrong += r.ids != continuation(prompt, 20);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(closed, 300);
  EXPECT_GT(failed, 30);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, AStepOfClosedRequestsAloneIsStopped) {
  toy::Model m;
  std::atomic<bool> inside{false}, go{false};
  m.seen->in_run = [&] {
    inside = true;
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto one = m.scheduler->request({text(1, 40)}, greedy(5)), two = m.scheduler->request({text(2, 40)}, greedy(5));
  one->wait(1, 5);  // starts a step with this request alone
  while (!inside) std::this_thread::yield();
  two->wait(1, 1);
  one->close();
  EXPECT_TRUE(one->done());
  EXPECT_EQ(m.pool->cached_tokens(text(1, 40)), 0);
  go = true;
  EXPECT_EQ(run(*two)[0].ids, continuation(text(2, 40), 5));
  EXPECT_EQ(m.pool->cached_tokens(text(1, 40)), 0) << "what a stopped step computed is void";
  EXPECT_EQ(m.leaked(), 0);
}

// Each thread makes requests that begin and end at random times. Each request must get the same bits as alone, greedy or sampled.
TEST(Scheduler, TogetherAsAlone) {
  struct Case {
    std::vector<Ids> prompts;
    GenerateParams params;
    std::vector<Result> alone;
  };
  std::vector<Case> cases(32);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Case& c = cases[i];
    for (std::size_t p = 0; p <= i % 3; ++p) c.prompts.push_back(text((i + p) % 9, 1 + (i * 37 + p * 11) % 300));
    c.params = i % 2 ? sampled(10 + static_cast<std::int64_t>(i) * 3 % 60, i) : greedy(40);
    c.params.n = 1 + static_cast<std::int32_t>(i % 4 == 3) * 2;
    if (i % 5 == 0) c.params.sampling.logprobs = 2;
    c.params.read_ahead = i % 3 ? 0 : 4;
    toy::Model m;
    c.alone = run(m, c.prompts, c.params);
  }
  for (const std::int64_t pages : {80, 4000}) {
    toy::Model m(pages);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (unsigned i = 0; i < cases.size(); ++i) {
      threads.emplace_back([&, i] {
        std::mt19937 random(i);
        for (int round = 0; round < 3; ++round) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
          const Case& c = cases[i];
          const auto found = run(*m.scheduler->request(c.prompts, c.params), 1 + static_cast<std::int32_t>(random() % 9));
          for (std::size_t s = 0; s < found.size(); ++s)
            wrong += found[s].ids != c.alone[s].ids || found[s].logprobs != c.alone[s].logprobs || found[s].top_ids != c.alone[s].top_ids;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0) << pages;
    EXPECT_EQ(m.leaked(), 0);
  }
}

TEST(Scheduler, ManyCallersShareSteps) {
  toy::Model m;
  m.seen->in_run = [&] {  // the first step waits for all callers
    patience::wait_until([&] { return m.seen->runs > 1 || m.scheduler->stats().running + m.scheduler->stats().waiting == 8; });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] { EXPECT_EQ(run(m, {text(t, 20)}, greedy(100), 1)[0].ids, continuation(text(t, 20), 100)); });
  for (std::thread& t : threads) t.join();
  EXPECT_LT(m.seen->runs, 110) << "800 tokens in the 100 steps of one caller, and some of the first";
}

TEST(Scheduler, AnErrorEndsItsRequestAlone) {
  toy::Model m;
  m.seen->poisonous = true;
  std::vector<std::shared_ptr<Request>> requests;
  for (std::uint64_t i = 0; i < 64; ++i) {
    Ids prompt = text(i, 20 + i % 40);
    if (i == 17) prompt.push_back(toy::kPoison);
    auto params = greedy(30);
    params.n = 2;
    requests.push_back(m.scheduler->request({prompt}, params));
  }
  for (const auto& request : requests) request->wait(1, 0);
  for (std::uint64_t i = 0; i < 64; ++i) {
    if (i == 17) {
      std::string message;
      EXPECT_EQ(toy::error_of([&] { run(*requests[i]); }, &message), ErrorKind::numeric);
      EXPECT_NE(message.find("sequence 0, position 38"), std::string::npos) << message;
      EXPECT_TRUE(requests[i]->done());
      EXPECT_EQ(toy::error_of([&] { run(m, {{5, toy::kPoison}}, greedy(3)); }), ErrorKind::numeric);
    } else {
      for (const Result& r : run(*requests[i])) EXPECT_EQ(r.ids, continuation(text(i, 20 + i % 40), 30)) << i;
    }
  }
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, AnErrorOfTheDeviceEndsTheRequestsOfItsStep) {
  toy::Model m;
  std::atomic<bool> fails{true};
  m.seen->in_run = [&] {
    if (fails) fail(ErrorKind::device, "a hiccup");
  };
  EXPECT_EQ(toy::error_of([&] { run(m, {text(1, 10)}, greedy(5)); }), ErrorKind::device);
  EXPECT_EQ(toy::error_of([&] { run(m, {text(2, 10)}, greedy(5)); }), ErrorKind::device);
  fails = false;
  EXPECT_EQ(run(m, {text(1, 10)}, greedy(5))[0].ids, continuation(text(1, 10), 5));
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, ASlowReaderSitsOut) {
  toy::Model m(12);
  auto params = greedy(150);
  params.read_ahead = 32;
  const Ids slow = text(1, 40), other = text(2, 200);
  const auto g = m.scheduler->request({slow}, params);
  EXPECT_TRUE(g->wait(32, 1e9));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(m.seen->rows, 40 + 31) << "it computed more than it may";
  EXPECT_EQ(run(m, {other}, greedy(150))[0].ids, continuation(other, 150));  // uses the pages of the parked sequence
  Ids got;
  while (!g->done()) {
    const auto news = toy::advance(*g, 1);
    for (const News& n : news) {
      EXPECT_LE(n.ids.size(), 32u);
      got.insert(got.end(), n.ids.begin(), n.ids.end());
    }
    if (got.size() % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(got, continuation(slow, 150));
  EXPECT_EQ(m.leaked(), 0);
}

// While a stream runs, a prompt must be computed in parts, so that both make progress.
TEST(Scheduler, ALongPromptDoesNotStallAStream) {
  toy::Model m;
  m.seen->in_run = [] { std::this_thread::sleep_for(std::chrono::microseconds(500)); };  // slows steps down, so that the stream lasts
  const auto stream = m.scheduler->request({text(1, 40)}, greedy(100000));
  stream->wait(2, 1e9);
  m.runtime->pace.measured(100, 1.0);  // pretends that 10 rows take 0.1 s
  m.seen->most_rows = 0;
  EXPECT_EQ(run(m, {text(2, 600)}, greedy(1))[0].ids, continuation(text(2, 600), 1));
  EXPECT_LE(m.seen->most_rows, 1 + 16);
  stream->close();
  m.seen->most_rows = 0;
  m.runtime->pace.measured(100, 1.0);
  EXPECT_EQ(run(m, {text(3, 600)}, greedy(1))[0].ids, continuation(text(3, 600), 1));
  EXPECT_GE(m.seen->most_rows, 128);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, SleepsWithoutWorkAndEndsWithTheModel) {
  toy::Model m;
  EXPECT_EQ(run(m, {text(1, 10)}, greedy(5))[0].ids, continuation(text(1, 10), 5));
  auto params = greedy(100);
  params.read_ahead = 3;
  const auto unread = m.scheduler->request({text(2, 10)}, params);
  unread->wait(3, 1e9);
  const auto cpu = [] {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double before = cpu();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu() - before, 0.01);
}

TEST(Scheduler, AChildOfAForkGoesOnAlone) {
  toy::Model m(200);
  auto params = greedy(2000);
  params.read_ahead = 8;
  const Ids prompt = text(1, 50);
  const auto stream = m.scheduler->request({prompt}, params);
  Ids got = toy::advance(*stream, 2).at(0).ids;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      while (!stop) EXPECT_EQ(run(m, {text(t, 70)}, greedy(30))[0].ids, continuation(text(t, 70), 30));
    });
  for (int child = 0; child < 20; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(patience::kPatience.count());
      Ids ids = got;
      while (ids.size() < 100)
        for (const News& n : toy::advance(*stream, 1)) ids.insert(ids.end(), n.ids.begin(), n.ids.end());
      ids.resize(100);
      bool good = ids == continuation(prompt, 100) && run(m, {text(9, 33)}, greedy(9))[0].ids == continuation(text(9, 33), 9);
      stream->close();
      m.pool->self_check();
      good = good && m.leaked() == 0;
      ::_exit(good ? 0 : 3);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "child " << child;
    for (const News& n : toy::advance(*stream, 1)) got.insert(got.end(), n.ids.begin(), n.ids.end());
  }
  stop = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(got, continuation(prompt, got.size()));
  stream->close();
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, AbandonedAndFinishedSequencesGiveTheirPagesBack) {
  toy::Model m;
  const Ids prompt = text(1, 100);
  auto params = greedy(50);
  params.n = 3;
  params.read_ahead = 3;
  {
    const auto g = m.scheduler->request({prompt, text(2, 500)}, params);
    g->wait(1, 1e9);
    EXPECT_GT(m.pool->stats().pages_in_use, 0);
  }
  EXPECT_EQ(m.leaked(), 0);
  EXPECT_EQ(m.pool->cached_tokens(prompt), 99);  // what the abandoned sequences computed stays cached
  {
    const auto g = m.scheduler->request({text(5, 300)}, params);
    g->finish(0);  // sequence 0 has computed nothing, so sequence 1 must compute the prompt
    std::vector<Result> results(3);
    take(results, toy::advance(*g, 3));
    g->finish(2);
    while (!g->done()) take(results, toy::advance(*g, 1000));
    EXPECT_TRUE(results[0].ids.empty());
    EXPECT_EQ(results[1].ids, continuation(text(5, 300), 50));
    EXPECT_EQ(results[2].ids, continuation(text(5, 300), 3));
    EXPECT_EQ(toy::advance(*g, 1).size(), 0u);
  }
  EXPECT_EQ(m.leaked(), 0);
  const auto g = m.scheduler->request({prompt}, greedy(50));
  g->wait(2, 1e9);
  g->close();
  EXPECT_TRUE(g->done());
  EXPECT_EQ(m.leaked(), 0);
  g->close();
  EXPECT_TRUE(m.scheduler->request({}, params)->done());
}

// One thread reads two streams in turns, and the pages hold only one of them. The streams must give up pages to each other, because neither
// ends while the other waits.
TEST(Scheduler, StreamsInTurnsShareATinyBudget) {
  toy::Model m(6);
  const Ids a = text(1, 90), b = text(2, 120);
  auto params = greedy(60);
  params.read_ahead = 1;
  const auto first = m.scheduler->request({a}, params), second = m.scheduler->request({b}, params);
  std::vector<Result> results(2);
  while (!first->done() || !second->done()) {
    std::vector<Result> one(1), two(1);
    take(one, toy::advance(*first, 1));
    take(two, toy::advance(*second, 1));
    EXPECT_LE(one[0].ids.size(), 1u);
    results[0].ids.insert(results[0].ids.end(), one[0].ids.begin(), one[0].ids.end());
    results[1].ids.insert(results[1].ids.end(), two[0].ids.begin(), two[0].ids.end());
  }
  EXPECT_EQ(results[0].ids, continuation(a, 60));
  EXPECT_EQ(results[1].ids, continuation(b, 60));
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, ManyThreadsOnOneModel) {
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

TEST(Scheduler, ComputesNothingBeforeSomebodyWaits) {
  toy::Model m;
  const auto g = m.scheduler->request({text(1, 10)}, greedy(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(m.seen->runs, 0);
  EXPECT_FALSE(g->done());
  EXPECT_EQ(run(*g)[0].ids, continuation(text(1, 10), 5));
}

TEST(Scheduler, WaitsForStepsOrTime) {
  toy::Model m;
  std::atomic<bool> go{false};
  m.seen->in_run = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto g = m.scheduler->request({text(1, 10), text(2, 700)}, greedy(100));
  EXPECT_FALSE(g->wait(1, 10));
  EXPECT_TRUE(g->take().empty());
  go = true;
  EXPECT_TRUE(g->wait(5, 1e9));
  std::vector<Result> results(2);
  take(results, g->take());
  EXPECT_GE(results[0].ids.size(), 5u);
  while (!g->done()) take(results, toy::advance(*g, 1000));
  EXPECT_EQ(results[1].ids, continuation(text(2, 700), 100));
  const Timings t = g->timings();
  EXPECT_EQ(t.prefill_tokens, 710);
  EXPECT_EQ(t.decode_tokens, 2 * 99);
  EXPECT_GT(t.prefill_seconds, 0);
  EXPECT_GT(t.decode_seconds, 0);
  EXPECT_LE(m.seen->most_rows, 514);
}

TEST(Scheduler, WideBatchesKeepTheirLogitsInBlocks) {
  toy::Model m(4000);
  std::vector<Ids> prompts;
  for (std::size_t i = 0; i < 300; ++i) prompts.push_back(text(i, 5));
  const auto results = run(m, prompts, greedy(6));
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(results[i].ids, continuation(prompts[i], 6));
  EXPECT_LE(m.seen->most_head_rows, 128);
  EXPECT_GT(m.seen->parallel, 0);
  EXPECT_EQ(m.leaked(), 0);
}

// ---------------------------------------------------------------- many readers in one thread
// Calls pump() until all requests have ended, and returns their news by tag. Adds the tags of requests that failed to `failed`.
std::map<std::uint64_t, std::vector<Result>> pump_all(Scheduler& scheduler,
                                                      const std::map<std::uint64_t, std::shared_ptr<Request>>& requests,
                                                      std::set<std::uint64_t>* failed = nullptr) {
  std::map<std::uint64_t, std::vector<Result>> results;
  for (const auto& [tag, request] : requests) results[tag].resize(static_cast<std::size_t>(request->sequences()));
  std::set<std::uint64_t> left;
  for (const auto& [tag, request] : requests) left.insert(tag);
  while (!left.empty()) {
    const auto all = scheduler.pump(10000);
    EXPECT_FALSE(all.empty());
    if (all.empty()) break;
    for (const RequestNews& news : all) {
      take(results.at(news.tag), news.news);
      if (!news.ended || left.erase(news.tag) == 0) continue;
      try {
        EXPECT_TRUE(requests.at(news.tag)->take().empty());
      } catch (const Error&) {
        if (failed) failed->insert(news.tag);
      }
      EXPECT_TRUE(requests.at(news.tag)->done());
    }
  }
  return results;
}

TEST(Scheduler, OnePumpReadsForAll) {
  toy::Model m(2000);
  m.seen->poisonous = true;
  std::map<std::uint64_t, std::shared_ptr<Request>> requests;
  for (std::uint64_t i = 0; i < 64; ++i) {
    Ids prompt = text(i, 20 + i % 40);
    if (i == 17) prompt.push_back(toy::kPoison);
    auto params = greedy(10 + static_cast<std::int64_t>(i) % 30);
    params.n = 1 + static_cast<std::int32_t>(i % 2);
    params.read_ahead = i % 3 ? 4 : 0;
    requests[100 + i] = m.scheduler->request({prompt}, params);
    requests[100 + i]->start(100 + i, 1 + static_cast<std::int32_t>(i % 5));
  }
  requests[7] = m.scheduler->request({}, greedy(5));
  requests[7]->start(7, 1);
  std::set<std::uint64_t> failed;
  const auto results = pump_all(*m.scheduler, requests, &failed);
  for (std::uint64_t i = 0; i < 64; ++i) {
    if (i == 17) continue;
    for (const Result& r : results.at(100 + i)) EXPECT_EQ(r.ids, continuation(text(i, 20 + i % 40), 10 + i % 30)) << i;
  }
  EXPECT_EQ(failed, std::set<std::uint64_t>{117});
  EXPECT_TRUE(m.scheduler->pump(0).empty());
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, WhatIsHeldOrClosedIsNotPumped) {
  toy::Model m;
  auto params = greedy(100);
  params.read_ahead = 8;
  const auto held = m.scheduler->request({text(1, 20)}, params), closed = m.scheduler->request({text(2, 20)}, params);
  held->start(1, 1);
  held->hold(true);
  closed->start(2, 1);
  EXPECT_EQ(m.scheduler->pump(patience::kPatienceMs).at(0).tag, 2u);
  closed->close();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(m.scheduler->pump(5).empty());
  std::thread waker([&] { m.scheduler->wake_pump(); });
  EXPECT_TRUE(m.scheduler->pump(patience::kPatienceMs).empty());
  waker.join();
  EXPECT_EQ(m.scheduler->stats().lagging, 1);
  held->hold(false);
  EXPECT_EQ(pump_all(*m.scheduler, {{1, held}}).at(1).at(0).ids, continuation(text(1, 20), 100));
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, ARequestThatLowerLimitsStopCountsAsWaiting) {
  toy::Model m;
  std::atomic<std::int64_t> allowed{40};  // number of steps that may still run; so no request has 200 tokens before the limits change
  m.seen->in_run = [&] {
    while (allowed <= 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --allowed;
  };
  const auto first = m.scheduler->request({text(1, 20)}, greedy(200)), second = m.scheduler->request({text(2, 20)}, greedy(200));
  first->wait(1, 1e9);
  second->wait(1, 1e9);
  m.scheduler->set_limits({.running = 1});
  allowed += 2;  // one step may have been planned with the old limits
  SchedulerStats stats;
  EXPECT_TRUE(patience::wait_until([&] {
    stats = m.scheduler->stats();
    return stats.running < 2;
  }));
  EXPECT_EQ(stats.running, 1);
  EXPECT_EQ(stats.waiting, 1);
  EXPECT_EQ(stats.lagging, 0);
  allowed = 1 << 20;
  EXPECT_EQ(run(*first)[0].ids, continuation(text(1, 20), 200));
  EXPECT_EQ(run(*second)[0].ids, continuation(text(2, 20), 200));
}

TEST(Scheduler, LimitsRefuseThoseWhoDoNotWait) {
  toy::Model m;
  std::atomic<bool> go{false};
  m.seen->in_run = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  m.scheduler->set_limits({.running = 2, .waiting = 3});
  std::map<std::uint64_t, std::shared_ptr<Request>> requests;
  for (std::uint64_t i = 0; i < 5; ++i) {
    requests[i] = m.scheduler->request({text(i, 20)}, greedy(20));
    requests[i]->start(i, 1);
  }
  const auto sixth = m.scheduler->request({text(6, 20)}, greedy(20));
  std::string message;
  EXPECT_EQ(toy::error_of([&] { sixth->start(6, 1); }, &message), ErrorKind::overloaded);
  EXPECT_NE(message.find("5 requests"), std::string::npos) << message;
  sixth->wait(1, 1);  // the limits refuse start(), but not a thread that waits
  go = true;
  const auto results = pump_all(*m.scheduler, requests);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(results.at(i).at(0).ids, continuation(text(i, 20), 20));
  EXPECT_EQ(run(*sixth)[0].ids, continuation(text(6, 20), 20));
  EXPECT_LE(m.seen->most_head_rows, 2) << "more requests in a step than may run";
  EXPECT_EQ(toy::error_of([&] { m.scheduler->set_limits({.running = 0}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(toy::error_of([&] { m.scheduler->set_limits({.step_seconds = std::nan("")}); }), ErrorKind::invalid_argument);
  const SchedulerStats stats = m.scheduler->stats();
  EXPECT_EQ(stats.running + stats.waiting + stats.lagging, 0);
  EXPECT_EQ(stats.decoded_tokens, 6 * 20);
  EXPECT_NEAR(static_cast<double>(stats.prompt_tokens), 6 * 20, 3);  // a few tokens are reused if texts begin alike
  EXPECT_EQ(stats.steps, m.seen->runs);
  EXPECT_GT(stats.busy_seconds, 0);
  EXPECT_EQ(m.leaked(), 0);
}

// The request with the highest priority must run first, even if running requests hold all pages. Requests of equal priority must run in
// order of arrival.
TEST(Scheduler, PrioritiesGoFirst) {
  std::atomic<bool> asked{false};
  toy::Model m(8);  // pages for one whole sequence
  m.seen->in_run = [&] {
    if (m.scheduler->stats().decoded_tokens >= 5) patience::wait_until([&] { return asked.load(); });
  };
  std::vector<int> order;
  std::map<std::uint64_t, std::shared_ptr<Request>> requests;
  const auto ask = [&](std::uint64_t tag, std::int32_t priority) {
    auto params = greedy(60);
    params.priority = priority;
    requests[tag] = m.scheduler->request({text(tag, 150)}, params);
    requests[tag]->start(tag, 1);
  };
  ask(1, 0);
  while (m.scheduler->stats().decoded_tokens < 5) std::this_thread::yield();
  ask(2, 0);
  ask(3, 5);
  ask(4, 5);
  ask(5, -1);
  asked = true;
  std::map<std::uint64_t, Ids> got;
  while (order.size() < 5)
    for (const RequestNews& news : m.scheduler->pump(patience::kPatienceMs)) {
      for (const News& n : news.news) got[news.tag].insert(got[news.tag].end(), n.ids.begin(), n.ids.end());
      if (news.ended && std::ranges::find(order, static_cast<int>(news.tag)) == order.end()) order.push_back(static_cast<int>(news.tag));
    }
  EXPECT_EQ(order, (std::vector<int>{3, 4, 1, 2, 5}));
  for (std::uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(got[i], continuation(text(i, 150), 60)) << i;
  EXPECT_GT(m.scheduler->stats().preempted, 0);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scheduler, WhatAParentPumpedIsAnErrorInItsChild) {
  toy::Model m;
  auto params = greedy(1000);
  params.read_ahead = 4;
  const auto one = m.scheduler->request({text(1, 20)}, params);
  one->start(1, 1);
  m.scheduler->pump(patience::kPatienceMs);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(patience::kPatience.count());
    bool good = toy::error_of([&] { one->wait(1, 1000); }) == ErrorKind::forked_device;
    const auto mine = m.scheduler->request({text(2, 20)}, greedy(5));
    mine->start(9, 1);
    Ids ids;
    while (ids.size() < 5)
      for (const RequestNews& news : m.scheduler->pump(1000)) {
        good = good && news.tag == 9;
        for (const News& n : news.news) ids.insert(ids.end(), n.ids.begin(), n.ids.end());
      }
    ::_exit(good && ids == continuation(text(2, 20), 5) ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  one->close();
  EXPECT_EQ(m.leaked(), 0);
}

// A filter whose mask() blocks, once `armed` is set, until the test sets `go`.
struct SlowMask final : TokenFilter {
  struct State {
    std::atomic<bool> armed{false}, inside{false}, go{false};
  };
  explicit SlowMask(std::shared_ptr<State> state) : state(std::move(state)) {}
  void mask(std::span<std::uint32_t> words) override {
    std::ranges::fill(words, ~0u);
    if (!state->armed.exchange(false)) return;
    state->inside = true;
    patience::wait_until([&] { return state->go.load(); });
    state->inside = state->go = false;
  }
  bool accept(std::int32_t) override { return true; }
  std::unique_ptr<TokenFilter> clone() const override { return std::make_unique<SlowMask>(*this); }
  const std::shared_ptr<State> state;
};

TEST(Scheduler, AMaskOfChangedLogitsStopsNoOtherCaller) {
  toy::Model m;
  const auto state = std::make_shared<SlowMask::State>();
  const Ids prompt = text(1, 40);
  auto params = greedy(2);
  params.shows_logits = true;
  params.filters = {std::make_shared<SlowMask>(state)};
  for (const bool closed : {false, true}) {
    const auto slow = m.scheduler->request({prompt}, params), other = m.scheduler->request({text(2, 40)}, greedy(5));
    slow->wait(1, 1e9);
    const auto shown = slow->shown();
    ASSERT_EQ(shown.size(), 1u);
    state->armed = true;
    slow->answer(0, shown[0].logits);
    while (!state->inside) std::this_thread::yield();
    EXPECT_FALSE(other->wait(1, 1));
    // The sequence that showed its logits is parked if the engine gathered sequences before the answer came; it then counts as waiting.
    const SchedulerStats stats = m.scheduler->stats();
    EXPECT_EQ(stats.running + stats.waiting + stats.lagging, 2);
    EXPECT_TRUE(slow->shown().empty()) << "it was answered";
    slow->answer(0, shown[0].logits);  // a second answer has no effect
    other->close();
    if (closed) slow->close();
    EXPECT_TRUE(state->inside) << "a call waited for the mask";
    state->go = true;
    if (closed) continue;
    Ids got;
    while (!slow->done()) {
      for (const News& n : toy::advance(*slow, 1)) got.insert(got.end(), n.ids.begin(), n.ids.end());
      for (const auto& row : slow->shown()) slow->answer(row.sequence, row.logits);
    }
    EXPECT_EQ(got, continuation(prompt, 2));
  }
  EXPECT_EQ(m.leaked(), 0);
}

// With chunk_seconds, the first token must come at once, and further ones so far apart. Half of read_ahead must come earlier, or else the
// sequence would be parked.
TEST(NewsDesk, DeliversChunksApart) {
  for (const std::int32_t read_ahead : {0, 16}) {
    for (const bool pumps : {false, true}) {
      std::atomic<bool> taken{false};  // whether this thread has the first token; the engine waits for that after the first step
      toy::Model m;
      m.seen->in_run = [&, first = true]() mutable {
        if (!first) patience::wait_until([&] { return taken.load(); });
        if (!first) taken = true;
        first = false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      };
      const patience::Watch watch;
      auto params = greedy(400);
      params.chunk_seconds = read_ahead > 0 ? 60 : 0.06f;
      params.read_ahead = read_ahead;
      const Ids prompt = text(1, 10);
      const auto request = m.scheduler->request({prompt}, params);
      if (pumps) request->start(1, 1);
      Ids ids;
      std::vector<std::size_t> sizes;
      while (!request->done()) {
        std::vector<News> some;
        if (pumps) {
          for (RequestNews& news : m.scheduler->pump(patience::kPatienceMs)) std::ranges::move(news.news, std::back_inserter(some));
        } else if (request->wait(1, 20)) {
          some = request->take();
        }
        if (some.empty()) continue;
        taken = true;
        sizes.push_back(some.at(0).ids.size());
        ids.insert(ids.end(), some.at(0).ids.begin(), some.at(0).ids.end());
      }
      EXPECT_EQ(ids, continuation(prompt, 400));
      EXPECT_EQ(sizes.at(0), 1u) << "the first token comes at once";
      if (read_ahead > 0) {
        for (std::size_t i = 1; i + 1 < sizes.size(); ++i) EXPECT_GE(sizes[i], 8u) << i;
        for (const std::size_t size : sizes) EXPECT_LE(size, 16u);
      } else {
        // Not the time between two chunks: the thread may read one of them late on a busy machine, and the next one not.
        EXPECT_LE(static_cast<double>(sizes.size()), watch.wall() / 0.06 + 2);  // the first and the last chunk wait for nothing
      }
    }
  }
}

// If the device's threads occupy all processors (`crowded`), a step waits for readers to handle their news. A reader that is late must be
// skipped in the next steps, until it has come back.
TEST(NewsDesk, WaitsForReadersAndSkipsThoseThatAreLate) {
  toy::Model m;
  const GenerateParams params;
  const Requests requests{make_request(*m.runtime, {text(1, 5)}, std::span(&params, 1))};
  NewsReader& reader = requests[0]->reader;
  WorkSignal work;
  SchedulerMutex mutex;
  SchedulerLock lock(mutex);
  NewsDesk roomy(work, false), crowded(work, true);
  reader.reading = true;
  roomy.let_read(lock, requests);
  EXPECT_EQ(reader.skip, 0) << "it was not waited for";
  crowded.let_read(lock, requests);
  EXPECT_EQ(reader.skip, 16);
  for (int step = 16; step-- > 0;) {
    crowded.let_read(lock, requests);
    EXPECT_EQ(reader.skip, step);
  }
  std::thread thread([&] {
    const SchedulerLock back(mutex);
    crowded.has_read(reader);
  });
  lock.unlock();
  thread.join();
  lock.lock();
  crowded.let_read(lock, requests);
  EXPECT_EQ(reader.skip, 0) << "it was back";
}

// ---------------------------------------------------------------- deadlines
GenerateParams within(float seconds, std::int64_t tokens = 100000) {
  auto params = greedy(tokens);
  params.max_seconds = seconds;
  return params;
}

TEST(Deadline, EndsARequestThatRuns) {
  toy::Model m(5000, 40000);
  m.seen->in_run = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  const Ids prompt = text(1, 30);
  std::vector<Result> results;
  for (const float seconds : {0.5f, 4.0f, 15.0f}) {  // on a busy machine, few tokens may come for long
    auto params = within(seconds, 32000);            // which take more than 32 s
    params.n = 2;
    const patience::Watch watch;
    results = run(*m.scheduler->request({prompt, text(2, 20)}, params));
    EXPECT_GE(watch.wall(), seconds);
    for (const Result& r : results) EXPECT_EQ(r.finish, Finish::deadline);
    if (results[0].ids.size() > 5) break;
  }
  EXPECT_GT(results[0].ids.size(), 5u);
  EXPECT_EQ(results[0].ids, continuation(prompt, results[0].ids.size()));
  const auto in_time = run(m, {prompt}, within(100, 5));
  EXPECT_EQ(in_time[0].finish, Finish::length);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Deadline, EndsARequestThatQueuesOrHasNoPages) {
  for (const bool pages : {false, true}) {
    toy::Model m(pages ? 6 : 1000);
    std::atomic<bool> seen{false};  // the deadline; until then, the 80 steps of the first request take 40 s
    m.seen->in_run = [&] {
      for (int waited = 0; !seen && waited < 500; ++waited) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    if (!pages) m.scheduler->set_limits({.running = 1});
    const Ids prompt = text(1, 100);
    const auto first = m.scheduler->request({prompt}, greedy(80));
    first->wait(1, 1e9);
    auto params = within(0.03f);
    params.n = 3;
    const auto queues = m.scheduler->request({text(2, 100)}, params);
    queues->start(7, 1);
    std::vector<RequestNews> news;
    while (news.empty()) news = m.scheduler->pump(patience::kPatienceMs);
    EXPECT_FALSE(first->done());
    seen = true;
    EXPECT_TRUE(news.at(0).ended);
    ASSERT_EQ(news[0].news.size(), 3u);
    for (const News& n : news[0].news) {
      EXPECT_TRUE(n.ids.empty());
      EXPECT_EQ(n.finish, Finish::deadline);
    }
    EXPECT_EQ(run(*first)[0].ids, continuation(prompt, 80));
    EXPECT_EQ(m.leaked(), 0);
  }
}

TEST(Deadline, EndsARequestThatSitsOut) {
  toy::Model m;
  auto reads = within(1), shows = within(1);
  reads.read_ahead = 3;
  shows.shows_logits = true;
  const auto lags = m.scheduler->request({text(1, 20)}, reads), shown = m.scheduler->request({text(2, 20)}, shows);
  lags->wait(3, 1e9);
  shown->wait(1, 1e9);
  const auto runs = m.seen->runs.load();
  EXPECT_TRUE(patience::wait_until([&] { return m.scheduler->stats().lagging == 0; }));
  EXPECT_EQ(m.seen->runs, runs) << "the engine slept";
  const auto results = run(*lags);
  EXPECT_EQ(results[0].ids, continuation(text(1, 20), 3));
  EXPECT_EQ(results[0].finish, Finish::deadline);
  shown->answer(0, std::vector<float>(toy::kVocab));
  EXPECT_EQ(run(*shown)[0].finish, Finish::deadline);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Deadline, CountsFromTheFirstWait) {
  toy::Model m;
  const auto request = m.scheduler->request({text(1, 20)}, within(3, 5));
  std::this_thread::sleep_for(std::chrono::milliseconds(3050));
  EXPECT_EQ(run(*request)[0].ids, continuation(text(1, 20), 5));
  EXPECT_EQ(toy::error_of([&] { m.scheduler->request({text(1, 20)}, within(-1)); }), ErrorKind::invalid_argument);
  const std::vector<GenerateParams> two{within(1), within(2)};
  EXPECT_EQ(toy::error_of([&] { m.scheduler->request({text(1, 20), text(2, 20)}, two); }), ErrorKind::invalid_argument);
}

TEST(Scheduler, RefusesWhatCannotBe) {
  toy::Model m(4, 200);
  const auto refused = [&](const std::vector<Ids>& prompts, const GenerateParams& params, ErrorKind kind, std::vector<const char*> parts) {
    std::string message;
    EXPECT_EQ(toy::error_of([&] { m.scheduler->request(prompts, params); }, &message), kind) << message;
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
  refused({text(1, 5)}, params, ErrorKind::invalid_argument, {"n=0 is out of range"});
  params.n = 1, params.eos_ids = {toy::kVocab};
  refused({text(1, 5)}, params, ErrorKind::invalid_argument, {"eos"});
  params.eos_ids = {}, params.sampling.temperature = -1;
  refused({text(1, 5)}, params, ErrorKind::invalid_argument, {"temperature"});
  toy::Model encoder(0, 100, toy::Toy::Kind::pooled);
  EXPECT_EQ(toy::error_of([&] { encoder.scheduler->request({text(1, 5)}, greedy(5)); }), ErrorKind::invalid_argument);
  EXPECT_EQ(run(m, {text(1, 127)}, greedy(5))[0].ids, continuation(text(1, 127), 1));
}

}  // namespace
}  // namespace pumice::engine::scheduler_test
