#include "engine/scorer.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/toy.h"

namespace pumice::engine {
namespace {

using Ids = std::vector<std::int32_t>;

Ids first(const Ids& ids, std::size_t count) { return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)}; }

TEST(Scorer, LogitsOfTheLastAndOfAllPositions) {
  toy::Model m;
  for (const std::size_t length : {1u, 2u, 32u, 33u, 129u, 700u}) {
    const Ids ids = toy::text(1, length);  // one text is the beginning of the next: the last position reuses pages
    std::vector<float> last(toy::kVocab), all(length * toy::kVocab);
    logits(*m.runtime, ids, false, last, m.cancel);
    EXPECT_EQ(last, toy::logits_after(ids));
    logits(*m.runtime, ids, true, all, m.cancel);
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
    score(*m.runtime, ids, scores, m.cancel);
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

TEST(Scorer, CancelAndGoOn) {
  toy::Model m;
  const Ids ids = toy::text(3, 2000);
  std::vector<float> scores(1999), again(1999);
  score(*m.runtime, ids, scores, m.cancel);
  Cancel cancel;
  int runs = 0;
  m.seen->in_run = [&] {
    if (++runs == 2) cancel.request();
  };
  EXPECT_EQ(toy::error_of([&] { score(*m.runtime, ids, again, cancel); }), ErrorKind::cancelled);
  m.seen->in_run = {};
  EXPECT_EQ(m.leaked(), 0);
  score(*m.runtime, ids, again, m.cancel);
  EXPECT_EQ(again, scores);
}

TEST(Scorer, TakesPagesOfStreamsThatDoNotRun) {
  toy::Model m(4);
  const Ids prompt = toy::text(1, 90), other = toy::text(2, 100);
  const auto g = m.scheduler->request({prompt}, {.max_new_tokens = 20});
  Ids got = toy::advance(*g, 5).at(0).ids;
  std::vector<float> last(toy::kVocab);
  logits(*m.runtime, other, false, last, m.cancel);
  EXPECT_EQ(last, toy::logits_after(other));
  for (const News& rest : toy::advance(*g, 100)) got.insert(got.end(), rest.ids.begin(), rest.ids.end());  // none, where all had come
  EXPECT_EQ(got, toy::continuation(prompt, 20));
}

TEST(Scorer, RefusesWhatCannotBe) {
  toy::Model m(4, 200);
  std::vector<float> out(toy::kVocab);
  const auto refused = [&](const Ids& ids, ErrorKind kind, const char* part) {
    std::string message;
    EXPECT_EQ(toy::error_of([&] { logits(*m.runtime, ids, false, out, m.cancel); }, &message), kind) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused({}, ErrorKind::invalid_argument, "no tokens");
  refused({5, -3}, ErrorKind::invalid_argument, "-3");
  refused(toy::text(1, 201), ErrorKind::context_length, "201");
  refused(toy::text(1, 129), ErrorKind::out_of_memory, "kv_budget=");
  EXPECT_EQ(toy::error_of([&] { logits(*m.runtime, Ids{1, 2}, true, out, m.cancel); }), ErrorKind::invalid_argument);
  EXPECT_EQ(toy::error_of([&] { score(*m.runtime, Ids{1, 2, 3}, out, m.cancel); }), ErrorKind::invalid_argument);
  EXPECT_EQ(m.leaked(), 0);
}

}  // namespace
}  // namespace pumice::engine
