#include "engine/scorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "engine/text_request.h"
#include "engine/toy.h"
#include "patience.h"

namespace pumice::engine {
namespace {

using Ids = std::vector<std::int32_t>;

Ids first(const Ids& ids, std::size_t count) { return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)}; }

TEST(Scorer, LogitsOfTheLastAndOfAllPositions) {
  toy::Model m;
  for (const std::size_t length : {1u, 2u, 32u, 33u, 129u, 700u}) {
    const Ids ids = toy::text(1, length);  // each text begins with the one before, whose pages are reused
    std::vector<float> last(toy::kVocab), all(length * toy::kVocab);
    logits(*m.scheduler, ids, false, last, m.cancel);
    EXPECT_EQ(last, toy::logits_after(ids));
    logits(*m.scheduler, ids, true, all, m.cancel);
    for (const std::size_t at : {std::size_t{0}, length / 2, length - 1}) {
      const auto row = toy::logits_after(first(ids, at + 1));
      EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + static_cast<std::ptrdiff_t>(at * toy::kVocab))) << length << ", " << at;
    }
    EXPECT_EQ(m.leaked(), 0);
  }
  EXPECT_LE(m.seen->most_head_rows, 128);
}

TEST(Scorer, LogProbabilityOfEachToken) {
  toy::Model m;
  for (const std::size_t length : {1u, 2u, 128u, 129u, 130u, 600u}) {
    const Ids ids = toy::text(2, length);
    std::vector<float> scores(length - 1);
    score(*m.scheduler, ids, scores, m.cancel);
    for (std::size_t i = 0; i + 1 < length; i += 1 + length / 20) {
      const auto row = toy::logits_after(first(ids, i + 1));
      double total = 0;
      for (const float x : row) total += std::exp(x);
      EXPECT_FLOAT_EQ(scores[i], static_cast<float>(row[ids[i + 1]] - std::log(total)));
    }
  }
  EXPECT_LE(m.seen->most_head_rows, 128);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scorer, LikeliestTokensAtEachPlace) {
  for (const std::int64_t pages : {25, 1000}) {
    toy::Model m(pages);
    for (const std::size_t length : {1u, 2u, 129u, 600u}) {
      for (const std::int32_t k : {1, 5, toy::kVocab}) {
        const Ids ids = toy::text(2, length);
        std::vector<float> scores(length - 1), likely((length - 1) * static_cast<std::size_t>(k));
        Ids top(likely.size());
        score(*m.scheduler, ids, scores, m.cancel, {.count = k, .ids = top, .log_probs = likely});
        for (std::size_t i = 0; i + 1 < length; i += 1 + length / 20) {
          const auto row = toy::logits_after(first(ids, i + 1));
          double total = 0;
          for (const float x : row) total += std::exp(x);
          const auto log_prob = [&](std::int32_t id) { return static_cast<float>(row[id] - std::log(total)); };
          EXPECT_NEAR(scores[i], log_prob(ids[i + 1]), 1e-5);
          Ids order(row.size());
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return row[a] > row[b]; });
          for (std::size_t j = 0; j < static_cast<std::size_t>(k); ++j) {
            const std::size_t at = i * static_cast<std::size_t>(k) + j;
            EXPECT_EQ(top[at], order[j]);
            EXPECT_NEAR(likely[at], log_prob(order[j]), 1e-5);
          }
        }
      }
    }
    EXPECT_LE(m.seen->most_head_rows, 128);
    EXPECT_EQ(m.leaked(), 0);
    std::vector<float> scores(1), likely(2);
    Ids top(1);
    EXPECT_EQ(toy::error_of([&] { score(*m.scheduler, toy::text(1, 2), scores, m.cancel, {.count = 2, .ids = top, .log_probs = likely}); }),
              ErrorKind::invalid_argument);
  }
}

TEST(Scorer, CancelAndGoOn) {
  toy::Model m;
  const Ids ids = toy::text(3, 2000);
  std::vector<float> scores(1999), again(1999);
  score(*m.scheduler, ids, scores, m.cancel);
  Cancel cancel;
  int runs = 0;
  std::atomic<bool> returned{false};
  m.seen->in_run = [&] {
    if (++runs != 2) return;
    cancel.request();
    patience::wait_until([&] { return returned.load(); });
  };
  EXPECT_EQ(toy::error_of([&] { score(*m.scheduler, ids, again, cancel); }), ErrorKind::cancelled);
  returned = true;
  EXPECT_EQ(m.leaked(), 0);  // waits for the end of the step
  m.seen->in_run = {};
  score(*m.scheduler, ids, again, m.cancel);
  EXPECT_EQ(again, scores);
}

TEST(Scorer, TakesPagesOfStreamsThatDoNotRun) {
  toy::Model m(4);
  const Ids prompt = toy::text(1, 90), other = toy::text(2, 100);
  const auto g = m.scheduler->request({prompt}, {.max_new_tokens = 20});
  Ids got = toy::advance(*g, 5).at(0).ids;
  std::vector<float> last(toy::kVocab);
  logits(*m.scheduler, other, false, last, m.cancel);
  EXPECT_EQ(last, toy::logits_after(other));
  // This adds nothing if all tokens had come before.
  for (const News& rest : toy::advance(*g, 100)) got.insert(got.end(), rest.ids.begin(), rest.ids.end());
  EXPECT_EQ(got, toy::continuation(prompt, 20));
}

// While a text that is scored holds all pages, a request has to wait. It must go on when the text has ended, although
// nothing else wakes it.
TEST(Scorer, ARequestGetsThePagesOfATextThatHasEnded) {
  toy::Model m(4);
  std::atomic<bool> inside{false}, go{false};
  m.seen->in_run = [&] {
    inside = true;
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::vector<float> scores(99), others(99);
  std::thread scorer([&] { score(*m.scheduler, toy::text(1, 100), scores, m.cancel); });
  while (!inside) std::this_thread::yield();
  const Ids prompt = toy::text(2, 90);
  const auto g = m.scheduler->request({prompt}, {.max_new_tokens = 5});
  EXPECT_FALSE(g->wait(1, 50));
  Cancel waits;  // another text waits for these pages, too
  std::thread other(
      [&] { EXPECT_EQ(toy::error_of([&] { score(*m.scheduler, toy::text(3, 100), others, waits); }), ErrorKind::cancelled); });
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_TRUE(m.cancel.begun());
  EXPECT_FALSE(waits.begun());
  waits.request();
  other.join();
  go = true;
  scorer.join();
  EXPECT_TRUE(g->wait(5, patience::kPatienceMs));
  EXPECT_EQ(g->take().at(0).ids, toy::continuation(prompt, 5));
  EXPECT_EQ(m.leaked(), 0);
}

// Many callers score texts beside requests that choose tokens, in a pool that cannot hold them all. Each must get the same result as alone.
TEST(Scorer, ManyCallersAtOnce) {
  std::vector<std::vector<float>> scores, rows;
  std::vector<Ids> texts;
  for (std::uint64_t i = 0; i < 6; ++i) {
    toy::Model alone;
    texts.push_back(toy::text(i % 4, 40 + 90 * i));  // some texts begin like others
    score(*alone.scheduler, texts[i], scores.emplace_back(texts[i].size() - 1), alone.cancel);
    logits(*alone.scheduler, texts[i], true, rows.emplace_back(texts[i].size() * toy::kVocab), alone.cancel);
  }
  for (const std::int64_t pages : {25, 1000}) {
    toy::Model m(pages);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 12; ++t)
      threads.emplace_back([&, t] {
        for (unsigned round = 0; round < 6; ++round) {
          const std::size_t i = (t + round) % texts.size();
          const Ids& ids = texts[i];
          if (t % 3 == 0) {
            std::vector<float> found(ids.size() - 1);
            score(*m.scheduler, ids, found, m.cancel);
            wrong += found != scores[i];
          } else if (t % 3 == 1) {
            std::vector<float> found(ids.size() * toy::kVocab), last(toy::kVocab);
            logits(*m.scheduler, ids, true, found, m.cancel);
            logits(*m.scheduler, ids, false, last, m.cancel);
            wrong += found != rows[i] || !std::equal(last.begin(), last.end(), found.end() - toy::kVocab);
          } else {
            const auto g = m.scheduler->request({ids}, {.max_new_tokens = 30, .priority = static_cast<std::int32_t>(t % 2)});
            Ids got;
            while (!g->done())
              for (const News& n : toy::advance(*g, 4)) got.insert(got.end(), n.ids.begin(), n.ids.end());
            wrong += got != toy::continuation(ids, 30);
          }
        }
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0) << pages;
    EXPECT_EQ(m.leaked(), 0);
    EXPECT_LE(m.seen->most_head_rows, 128);
  }
}

// While a stream runs, a text that is scored must be computed in pieces, like a prompt. Rows with a score cost time in the head too, so
// fewer of them fit into a short step.
TEST(Scorer, ATextBesideAStreamGetsTheRowsOfAShortStep) {
  toy::Model m;
  m.seen->in_run = [] { std::this_thread::sleep_for(std::chrono::microseconds(300)); };  // slows steps down, so that the stream lasts
  const auto stream = m.scheduler->request({toy::text(1, 40)}, {.max_new_tokens = 100000});
  stream->wait(2, 1e9);
  std::vector<float> scores(299), last(toy::kVocab);
  m.runtime->pace.measured(100, 1.0);  // pretends that 10 rows take 0.1 s
  m.seen->most_rows = 0;
  logits(*m.scheduler, toy::text(2, 300), false, last, m.cancel);
  EXPECT_EQ(m.seen->most_rows, 1 + 16);
  for (const double head : {3.0, 100.0}) {
    m.runtime->pace.measured_heads(100, head);
    m.seen->most_rows = 0;
    score(*m.scheduler, toy::text(3, 300), scores, m.cancel);
    EXPECT_EQ(m.seen->most_rows, 1 + 4) << "with its head a row takes as long as " << 1 + head << " of a prompt";
  }
  stream->close();
  EXPECT_EQ(m.leaked(), 0);
}

// A cancelled caller must not have to wait for the end of the step, and nothing may be written to its memory after it has returned.
TEST(Scorer, CancelIsSeenInTheMiddleOfAStep) {
  toy::Model m;
  std::atomic<int> runs{0}, ended{0}, allowed{0};
  m.seen->in_run = [&] {
    const int mine = ++runs;
    patience::wait_until([&] { return allowed >= mine; });
    ++ended;
  };
  const auto stream = m.scheduler->request({toy::text(1, 40)}, {.max_new_tokens = 20});
  stream->wait(1, 5);
  while (runs < 1) std::this_thread::yield();  // a step with this stream alone is running, so the callers take part in the next one
  const Ids ids = toy::text(2, 60);
  std::vector<float> scores(59, -1), rows(60 * toy::kVocab, -1);
  Cancel cancel;
  std::vector<std::thread> callers;
  std::atomic<int> cancelled{0};
  callers.emplace_back([&] { cancelled += toy::error_of([&] { score(*m.scheduler, ids, scores, cancel); }) == ErrorKind::cancelled; });
  callers.emplace_back([&] { cancelled += toy::error_of([&] { logits(*m.scheduler, ids, true, rows, cancel); }) == ErrorKind::cancelled; });
  while (m.scheduler->stats().waiting < 2) std::this_thread::yield();
  allowed = 1;
  while (runs < 2) std::this_thread::yield();
  cancel.request();
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(ended, 1) << "the step goes on until `allowed` changes";
  const std::vector<float> scores_before = scores, rows_before = rows;
  allowed = 1000;
  Ids got;
  while (!stream->done())
    for (const News& n : toy::advance(*stream, 100)) got.insert(got.end(), n.ids.begin(), n.ids.end());
  EXPECT_EQ(got, toy::continuation(toy::text(1, 40), 20));
  EXPECT_EQ(scores, scores_before);
  EXPECT_EQ(rows, rows_before);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scorer, AnErrorEndsItsTextAlone) {
  toy::Model m;
  m.seen->poisonous = true;
  Ids poisoned = toy::text(1, 70);
  poisoned.push_back(toy::kPoison);
  const auto stream = m.scheduler->request({toy::text(2, 40)}, {.max_new_tokens = 300});
  stream->wait(1, 1e9);
  std::vector<float> rows(poisoned.size() * toy::kVocab), last(toy::kVocab), fine(toy::kVocab);
  std::string message;
  EXPECT_EQ(toy::error_of([&] { logits(*m.scheduler, poisoned, true, rows, m.cancel); }, &message), ErrorKind::numeric);
  EXPECT_NE(message.find("after token 70 is"), std::string::npos) << message;
  EXPECT_EQ(toy::error_of([&] { logits(*m.scheduler, poisoned, false, last, m.cancel); }), ErrorKind::numeric);
  logits(*m.scheduler, toy::text(3, 50), false, fine, m.cancel);
  EXPECT_EQ(fine, toy::logits_after(toy::text(3, 50)));
  Ids got;
  while (!stream->done())
    for (const News& n : toy::advance(*stream, 100)) got.insert(got.end(), n.ids.begin(), n.ids.end());
  EXPECT_EQ(got, toy::continuation(toy::text(2, 40), 300));
  EXPECT_EQ(m.leaked(), 0);
}

// An error in the head of a text that is scored must end this text, but not a stream in the same step.
TEST(Scorer, ATextWithoutMemoryEndsAlone) {
  toy::Model m;
  m.seen->log_probs_fail = true;
  const Ids ids = toy::text(1, 200), prompt = toy::text(2, 30);
  std::atomic<int> runs{0};
  std::atomic<bool> asked{false};
  m.seen->in_run = [&] {
    if (++runs == 2)
      while (!asked) std::this_thread::yield();
  };
  const auto stream = m.scheduler->request({prompt}, {.max_new_tokens = 60});
  stream->wait(1, 1);
  while (runs < 2) std::this_thread::yield();
  std::thread caller([&] {
    std::vector<float> scores(199);
    EXPECT_EQ(toy::error_of([&] { score(*m.scheduler, ids, scores, m.cancel); }), ErrorKind::out_of_device_memory);
  });
  asked = true;
  Ids got;
  while (!stream->done())
    for (const News& n : toy::advance(*stream, 10)) got.insert(got.end(), n.ids.begin(), n.ids.end());
  caller.join();
  EXPECT_EQ(got, toy::continuation(prompt, 60));
  EXPECT_EQ(m.leaked(), 0);
}

// If a request of higher priority has taken pages of a text, the text must go on later from those of its pages that are left.
TEST(Scorer, ATextThatLostItsPagesGoesOn) {
  toy::Model m(40);
  const Ids ids = toy::text(1, 1000), prompt = toy::text(2, 300);
  toy::Model other;
  std::vector<float> expected(999), scores(999);
  score(*other.scheduler, ids, expected, other.cancel);
  std::shared_ptr<Request> high;
  std::atomic<int> runs{0};
  std::atomic<bool> asked{false};
  m.seen->in_run = [&] {
    if (++runs == 2)
      while (!asked) std::this_thread::yield();
  };
  std::thread caller([&] { score(*m.scheduler, ids, scores, m.cancel); });
  while (runs < 2) std::this_thread::yield();
  high = m.scheduler->request({prompt}, {.max_new_tokens = 40, .priority = 3});
  high->wait(1, 1);
  asked = true;
  Ids got;
  while (!high->done())
    for (const News& n : toy::advance(*high, 10)) got.insert(got.end(), n.ids.begin(), n.ids.end());
  caller.join();
  EXPECT_EQ(got, toy::continuation(prompt, 40));
  EXPECT_EQ(scores, expected);
  EXPECT_EQ(m.scheduler->stats().preempted, 1);
  EXPECT_EQ(m.leaked(), 0);
}

// ---------------------------------------------------------------- pages that a caller reads and writes
TEST(TextRequest, KeepsItsPagesUntilItsEnd) {
  toy::Model m(4);
  const Ids ids = toy::text(1, 100), other = toy::text(2, 90);
  std::vector<std::uint8_t> bytes;
  {
    TextRequest text(*m.scheduler, ids, TextTask::Wants::pages);
    text.run(m.cancel);
    ASSERT_EQ(text.table().pages().size(), 4u);
    EXPECT_EQ(m.scheduler->stats().running, 1);
    const auto waits = m.scheduler->request({other}, {.max_new_tokens = 1});
    EXPECT_FALSE(waits->wait(1, 50));
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(m.store->cell(text.table().pages(), static_cast<std::int32_t>(i)), ids[i]);
  }
  EXPECT_EQ(m.pool->cached_tokens(ids), 99);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(TextRequest, WhatACallerWroteIsEverybodys) {
  toy::Model m(8);
  const Ids ids = toy::text(1, 100);
  {
    TextRequest text(*m.scheduler, ids, TextTask::Wants::room);
    text.run(m.cancel);
    for (std::size_t i = 0; i < ids.size(); ++i) m.store->cell(text.table().pages(), static_cast<std::int32_t>(i)) = ids[i];
    text.written();
  }
  EXPECT_EQ(m.seen->runs, 0);
  EXPECT_EQ(m.pool->cached_tokens(ids), 99);
  {
    TextRequest(*m.scheduler, toy::text(2, 100), TextTask::Wants::room).run(m.cancel);
  }
  EXPECT_EQ(m.pool->cached_tokens(toy::text(2, 100)), 0) << "nothing was written";
  std::vector<float> last(toy::kVocab);
  logits(*m.scheduler, ids, false, last, m.cancel);
  EXPECT_EQ(last, toy::logits_after(ids));
  EXPECT_EQ(m.seen->rows, 1);
  EXPECT_EQ(m.leaked(), 0);
}

TEST(Scorer, RefusesWhatCannotBe) {
  toy::Model m(4, 200);
  std::vector<float> out(toy::kVocab);
  const auto refused = [&](const Ids& ids, ErrorKind kind, const char* part) {
    std::string message;
    EXPECT_EQ(toy::error_of([&] { logits(*m.scheduler, ids, false, out, m.cancel); }, &message), kind) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused({}, ErrorKind::invalid_argument, "no tokens");
  refused({5, -3}, ErrorKind::invalid_argument, "-3");
  refused(toy::text(1, 201), ErrorKind::context_length, "201");
  refused(toy::text(1, 129), ErrorKind::out_of_memory, "kv_budget=");
  EXPECT_EQ(toy::error_of([&] { logits(*m.scheduler, Ids{1, 2}, true, out, m.cancel); }), ErrorKind::invalid_argument);
  EXPECT_EQ(toy::error_of([&] { score(*m.scheduler, Ids{1, 2, 3}, out, m.cancel); }), ErrorKind::invalid_argument);
  EXPECT_EQ(m.leaked(), 0);
}

}  // namespace
}  // namespace pumice::engine
