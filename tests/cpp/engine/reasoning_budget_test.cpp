#include "engine/reasoning_budget.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "core/batch.h"
#include "engine/settings.h"
#include "engine/toy.h"

namespace pumice::engine::reasoning_budget_test {
namespace {

using Ids = std::vector<std::int32_t>;

std::shared_ptr<const TokenBytes> bytes_of(const std::vector<std::string>& tokens) {
  std::vector<std::uint32_t> lengths;
  std::vector<std::uint8_t> bytes;
  for (const std::string& token : tokens) {
    lengths.push_back(static_cast<std::uint32_t>(token.size()));
    bytes.insert(bytes.end(), token.begin(), token.end());
  }
  return std::make_shared<const TokenBytes>(lengths, std::move(bytes));
}

// A vocabulary in which the markers are special tokens, and can also be spelled by other tokens.
const std::vector<std::string> kTokens = {"a",         "b",           " ",           "\n",           "<",          "think",    ">",
                                          "</",        ">b",          "\xff<think>", "\xff</think>", "\xe2",       "\x82",     "\xac",
                                          "\xff<end>", "\xff<start>", "final",       "more",         "\xff<call>", "x<think>y"};
enum : std::int32_t {
  A,
  B,
  Space,
  Line,
  Less,
  Think,
  More,
  Close1,
  MoreB,
  Open,
  Close,
  Euro1,
  Euro2,
  Euro3,
  End,
  Start,
  Final,
  Again,
  Call,
  Inside
};

ReasoningMarks marks_of(const std::string& open, const std::string& close, Ids close_ids) {
  ReasoningMarks marks{.tokens = bytes_of(kTokens), .open = Marker(open), .close = Marker(close), .close_ids = std::move(close_ids)};
  marks.openers = tokens_with(marks.open, *marks.tokens);
  return marks;
}
ReasoningMarks think() { return marks_of("<think>", "</think>", {Close}); }
ReasoningMarks spelled() { return marks_of("<think>", "</think>", {Close1, Think, More}); }

// The ids that a filter allows next.
Ids allowed(TokenFilter& filter) {
  const auto count = static_cast<std::int32_t>(kTokens.size());
  Ids ids;
  std::vector<std::uint32_t> words(mask_words(count));
  filter.mask(words);
  for (std::int32_t id = 0; id < count; ++id)
    if (words[static_cast<std::size_t>(id / 32)] >> (id % 32) & 1u) ids.push_back(id);
  EXPECT_EQ(filter.open(), ids.size() == kTokens.size());
  return ids;
}

// Lets a new filter take some ids. Returns the only id that it then allows, -1 if it allows all, or -2 - id for the first id that it
// forbids.
std::int32_t next(const ReasoningMarks& marks, std::int64_t most, bool opened, const Ids& taken, std::int64_t* cut = nullptr) {
  const auto filter = reasoning_budget(std::make_shared<const ReasoningMarks>(marks), most, opened);
  for (const std::int32_t id : taken) {
    EXPECT_TRUE(filter->accept(id));
  }
  if (cut) *cut = filter->reasoning_cut();
  const Ids ids = allowed(*filter->clone());
  EXPECT_EQ(ids, allowed(*filter));
  if (ids.size() == 1) return ids.front();
  if (ids.size() == kTokens.size()) return -1;
  for (std::int32_t id = 0;; ++id)
    if (std::ranges::find(ids, id) == ids.end()) return -2 - id;
}

TEST(ReasoningBudget, CountsTheTokensBehindTheMarker) {
  std::int64_t cut = 0;
  EXPECT_EQ(next(think(), 2, true, {}, &cut), -1);
  EXPECT_EQ(cut, -1);
  EXPECT_EQ(next(think(), 2, true, {A}), -1);
  EXPECT_EQ(next(think(), 2, true, {A, B}, &cut), Close);
  EXPECT_EQ(cut, 2);
  EXPECT_EQ(next(think(), 2, true, {A, B, Close}, &cut), -2 - Open);
  EXPECT_EQ(cut, 2);
  // The model opens the reasoning: the marker itself does not count.
  EXPECT_EQ(next(think(), 2, false, {A, B, A, B}, &cut), -1);
  EXPECT_EQ(cut, -1);
  EXPECT_EQ(next(think(), 2, false, {A, Open, B}), -1);
  EXPECT_EQ(next(think(), 2, false, {A, Open, B, B}, &cut), Close);
  EXPECT_EQ(cut, 4);
  EXPECT_EQ(next(think(), 2, false, {Less, Think, More, B, B}), Close);
  EXPECT_EQ(next(think(), 1, false, {Inside, B}), Close);
  // Reasoning that the model ends itself.
  EXPECT_EQ(next(think(), 2, true, {A, Close, A, A}, &cut), -1);
  EXPECT_EQ(cut, -1);
  EXPECT_EQ(next(think(), 5, true, {Close1, Think, MoreB, A, A, A}, &cut), -1);
  EXPECT_EQ(cut, -1);
}

TEST(ReasoningBudget, OfZeroEndsReasoningAtOnce) {
  std::int64_t cut = 0;
  EXPECT_EQ(next(think(), 0, true, {}, &cut), Close);
  EXPECT_EQ(cut, 0);
  EXPECT_EQ(next(think(), 0, false, {A, A}), -1);
  EXPECT_EQ(next(think(), 0, false, {A, Open}, &cut), Close);
  EXPECT_EQ(cut, 2);
  EXPECT_EQ(next(spelled(), 0, true, {}), Close1);
  EXPECT_EQ(next(spelled(), 0, true, {Close1}), Think);
  EXPECT_EQ(next(spelled(), 0, true, {Close1, Think}), More);
  EXPECT_EQ(next(spelled(), 0, true, {Close1, Think, More}), -2 - Open);
}

TEST(ReasoningBudget, GoesOnWithAMarkerThatTheModelHasBegun) {
  std::int64_t cut = 0;
  EXPECT_EQ(next(spelled(), 2, true, {A, Close1}, &cut), Think);
  EXPECT_EQ(cut, 2);
  EXPECT_EQ(next(spelled(), 3, true, {A, Close1, Think}), More);
  EXPECT_EQ(next(spelled(), 3, true, {A, Close1, A}), Close1);
  EXPECT_EQ(next(spelled(), 3, true, {Close1, Close1, Close1}), Think);
  EXPECT_EQ(next(spelled(), 4, true, {A, Close1, Think, MoreB}, &cut), -1);  // it was complete in time
  EXPECT_EQ(cut, -1);
}

TEST(ReasoningBudget, LetsTheModelCompleteACharacter) {
  std::int64_t cut = 0;
  EXPECT_EQ(next(think(), 1, true, {Euro1}), -1);
  EXPECT_EQ(next(think(), 1, true, {Euro1, Euro2}), -1);
  EXPECT_EQ(next(think(), 1, true, {Euro1, Euro2, Euro3}, &cut), Close);
  EXPECT_EQ(cut, 3);
  EXPECT_EQ(next(think(), 1, true, {Euro1, A}), Close);
  EXPECT_EQ(next(think(), 1, true, {Euro1, Euro1, Euro1}), -1);
  EXPECT_EQ(next(think(), 1, true, {Euro1, Euro1, Euro1, Euro1}), Close);  // bytes that become no character do not hold it up for ever
}

TEST(ReasoningBudget, IsThatOfAllPartsOfTheReasoning) {
  std::int64_t cut = 0;
  EXPECT_EQ(next(think(), 3, true, {A, A, Close, B, B, B, Open}), -1);
  EXPECT_EQ(next(think(), 3, true, {A, A, Close, B, B, B, Open, A}, &cut), Close);
  EXPECT_EQ(cut, 8);
}

TEST(ReasoningBudget, KeepsReasoningFromBeginningAgain) {
  EXPECT_EQ(tokens_with(Marker("<think>"), *bytes_of(kTokens)), (Ids{Open, Inside}));
  EXPECT_EQ(next(think(), 2, true, {A}), -1);
  EXPECT_EQ(next(think(), 2, true, {A, A, Close}), -2 - Open);
  EXPECT_EQ(next(think(), 2, true, {A, A, Close, B}), -2 - Open);
  EXPECT_EQ(next(think(), 2, true, {A, A, Close, Less, Think}), -2 - More);  // and ">b"
  EXPECT_EQ(next(think(), 2, true, {A, A, Close, Less, Less}), -2 - Open);   // "think" does not complete it
  EXPECT_EQ(next(think(), 2, true, {A, A, Close, Less, Think, A}), -2 - Open);
  EXPECT_EQ(next(think(), 2, true, {A, A, Close, Less, Think, More}), Close);  // the filter is not asked, and ends it at once
  EXPECT_EQ(next(think(), 2, true, {A, Close, B}), -1);                        // the model has ended it itself
  ReasoningMarks marks = marks_of("<call>more<start>", "<end><start>", {End, Start});
  marks.again = {Call, Again};  // other parts begin with "<call>" too
  EXPECT_EQ(next(marks, 1, true, {A}), End);
  EXPECT_EQ(next(marks, 1, true, {A, End}), Start);
  EXPECT_EQ(next(marks, 1, true, {A, End, Start}), -1);
  EXPECT_EQ(next(marks, 1, true, {A, End, Start, Call}), -2 - Again);
  EXPECT_EQ(next(marks, 1, true, {A, End, Start, Call, Final}), -1);
}

TEST(ReasoningBudget, ReadsNoMarkersInCallsAndAnswersOfAForm) {
  ReasoningMarks marks = think();
  marks.call = Marker("<call>");
  EXPECT_EQ(next(marks, 1, true, {A, Close, Call, Open, A, A, A}), -1);
  EXPECT_EQ(next(marks, 1, false, {Call, Open, A, A, A}), -1);
  EXPECT_EQ(next(marks, 1, true, {Call}), Close);  // inside of reasoning it is text
  marks = think();
  marks.leads = true;
  EXPECT_EQ(next(marks, 1, false, {Line, Space, Open, A}), Close);
  EXPECT_EQ(next(marks, 1, false, {Space, Less, Think, More, A}), Close);
  EXPECT_EQ(next(marks, 1, false, {A, Open, A, A}), -1);
  EXPECT_EQ(next(marks, 1, false, {Less, Less, Think, More, A, A}), -1);
  EXPECT_EQ(next(marks, 1, false, {Less, A, Open, A, A}), -1);
  EXPECT_EQ(next(marks, 9, true, {A, Close, Open, A, A, A, A, A, A, A, A, A, A}), -1);
}

// The expected places come from a search in whole texts.
TEST(ReasoningBudget, FindsMarkersAsASearchDoes) {
  std::mt19937 random(5);
  int found = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string marker, text;
    for (unsigned i = 0; i < 1 + random() % 5; ++i) marker += "ab"[random() % 2];
    for (unsigned i = 0; i < random() % 12; ++i) text += "ab"[random() % 2];
    const Marker machine(marker);
    std::size_t matched = 0, first = std::string::npos;
    for (std::size_t i = 0; i < text.size() && first == std::string::npos; ++i) {
      matched = machine.after(matched, static_cast<std::uint8_t>(text[i]));
      if (matched == machine.size()) first = i + 1 - machine.size();
    }
    ASSERT_EQ(first, text.find(marker)) << text << " " << marker;
    found += first != std::string::npos;
  }
  EXPECT_GT(found, 500);
}

TEST(ReasoningBudget, IsCheckedBesideOtherSettings) {
  const auto refused = [](GenerateParams params, const char* what) {
    std::string message;
    params.max_reasoning_tokens = std::max<std::int64_t>(params.max_reasoning_tokens, 0);
    params.reasoning = std::make_shared<const ReasoningMarks>(spelled());
    EXPECT_EQ(toy::error_of([&] { check(params, static_cast<std::int32_t>(kTokens.size())); }, &message), ErrorKind::invalid_argument);
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  refused({.max_reasoning_tokens = std::int64_t{1} << 31}, "max_reasoning_tokens=2147483648 is out of range");
  refused({.eos_ids = {A, More}}, "token 6, which ends this model's whole answer");
  refused({.min_new_tokens = 3, .stop_ids = {Think}}, "token 5, which stop and min_new_tokens forbid");
  refused({.bad_words = {{A}, {Think, More}}}, "token 7 and what follows it, which bad_words forbid");
  GenerateParams banned;
  banned.sampling.logit_bias = {{Close1, -std::numeric_limits<float>::infinity()}};
  refused(banned, "token 7, which logit_bias forbids");
  GenerateParams sound{.bad_words = {{A}, {More, Think}}};
  sound.sampling.logit_bias = {{Close1, -100.0f}};
  sound.stop_ids = {Think};
  sound.max_reasoning_tokens = 4;
  sound.reasoning = std::make_shared<const ReasoningMarks>(spelled());
  check(sound, static_cast<std::int32_t>(kTokens.size()));
  EXPECT_EQ(toy::error_of([&] { check(sound, 7); }), ErrorKind::invalid_argument);
}

// ---------------------------------------------------------------- whole requests
// The toy's vocabulary: ids 1 to 3 spell "</think>", 4 is "<think>", and all others are letters.
std::shared_ptr<const ReasoningMarks> toy_marks() {
  std::vector<std::string> tokens;
  for (std::int32_t id = 0; id < toy::kVocab; ++id) tokens.push_back(std::string(1, static_cast<char>('a' + id % 26)));
  tokens[1] = "</", tokens[2] = "think", tokens[3] = ">", tokens[4] = "\xff<think>";
  ReasoningMarks marks{.tokens = bytes_of(tokens), .open = Marker("<think>"), .close = Marker("</think>"), .close_ids = {1, 2, 3}};
  marks.openers = tokens_with(marks.open, *marks.tokens);
  return std::make_shared<const ReasoningMarks>(marks);
}

struct Said {
  Ids ids;
  std::int64_t cut = -1;
  Finish finish = Finish::none;
  std::vector<float> logprobs;
};

std::vector<Said> said(toy::Model& m, const std::vector<Ids>& prompts, const GenerateParams& params, Timings* timings = nullptr) {
  const auto request = m.scheduler->request(prompts, params);
  std::vector<Said> all(static_cast<std::size_t>(request->sequences()));
  while (!request->done()) {
    for (const News& news : toy::advance(*request, 3)) {
      Said& each = all[static_cast<std::size_t>(news.sequence)];
      each.ids.insert(each.ids.end(), news.ids.begin(), news.ids.end());
      each.logprobs.insert(each.logprobs.end(), news.logprobs.begin(), news.logprobs.end());
      if (news.reasoning_cut >= 0) each.cut = news.reasoning_cut;
      if (news.finish != Finish::none) each.finish = news.finish;
    }
  }
  if (timings) *timings = request->timings();
  return all;
}

// Every answer is, up to the cut, that without a budget; then the marker comes; and tokens behind it are those of the same text, so that
// batches, guesses and preemption (nine pages) change nothing.
TEST(ReasoningBudget, HoldsInAnyBatchWithGuessesAndWithoutPages) {
  std::mt19937_64 random(11);
  const auto marks = toy_marks();
  std::int64_t cuts = 0, accepted = 0, preempted = 0;
  for (int trial = 0; trial < 48; ++trial) {
    std::vector<Ids> prompts;
    for (std::uint64_t i = 0; i < 1 + random() % 6; ++i)
      prompts.push_back(toy::text(700 * static_cast<std::uint64_t>(trial) + i, 1 + random() % 70));
    GenerateParams params{.max_new_tokens = 60, .n = static_cast<std::int32_t>(1 + random() % 3)};
    SamplingParams& s = params.sampling;
    s.seed = static_cast<std::uint64_t>(trial);
    s.logit_bias = {{4, 4.0f}};  // so that the model opens reasoning sometimes
    if (trial % 3) s.temperature = 0.8f;
    if (trial % 4 == 1) s.top_k = 5;
    if (trial % 4 == 2) s.repetition_penalty = 1.3f;
    if (trial % 5 == 3) s.mirostat_tau = 2;
    s.logprobs = trial % 7 == 2 ? 1 : -1;
    toy::Model alone;
    const auto free = said(alone, prompts, params);
    params.reasoning = marks;
    params.max_reasoning_tokens = static_cast<std::int64_t>(random() % 20);
    params.reasoning_opened = trial % 2 == 1;
    std::vector<Said> wanted;  // each prompt by itself; its samples have the same seeds as in the batch
    for (const Ids& prompt : prompts)
      for (Said& each : said(alone, {prompt}, params)) wanted.push_back(std::move(each));

    toy::Model m(trial % 6 == 5 ? 9 : 1000);
    if (trial % 2 == 0 || trial % 6 == 5) {
      for (const Said& each : trial % 4 == 0 ? free : wanted)
        params.speculation.replay.push_back(each.ids);  // also guesses beyond the budget
      params.speculation.always = true;
      params.speculation.most = static_cast<std::int32_t>(1 + random() % 8);
    }
    Timings timings;
    const auto found = said(m, prompts, params, &timings);
    accepted += timings.accepted_tokens;
    preempted += m.scheduler->stats().preempted;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(found[i].ids, wanted[i].ids) << trial << ", sequence " << i;
      ASSERT_EQ(found[i].cut, wanted[i].cut) << trial << ", sequence " << i;
      ASSERT_EQ(found[i].logprobs, wanted[i].logprobs) << trial << ", sequence " << i;
      const Ids& ids = found[i].ids;
      const std::size_t cut = found[i].cut < 0 ? ids.size() : std::min(ids.size(), static_cast<std::size_t>(found[i].cut));
      ASSERT_TRUE(std::ranges::equal(std::span(ids).first(cut), std::span(free[i].ids).first(cut))) << trial;
      // If the model has begun the marker itself, only its rest follows.
      std::size_t begun = 0;
      if (cut >= 1 && ids[cut - 1] == 1) begun = 1;
      if (cut >= 2 && ids[cut - 2] == 1 && ids[cut - 1] == 2) begun = 2;
      if (cut + 3 - begun > ids.size()) continue;
      ++cuts;
      const std::span<const std::int32_t> marker = std::span(ids).subspan(cut - begun, 3);
      ASSERT_TRUE(std::ranges::equal(marker, Ids{1, 2, 3})) << trial << ", sequence " << i;
      const auto opened = std::ranges::find(std::span(ids).first(cut), 4);
      const std::int64_t first = params.reasoning_opened ? 0 : opened - std::span(ids).first(cut).begin() + 1;
      ASSERT_EQ(static_cast<std::int64_t>(cut) - first, params.max_reasoning_tokens) << trial << ", sequence " << i;
      ASSERT_EQ(std::ranges::count(std::span(ids).subspan(cut), 4), 0) << "reasoning began again";
    }
    ASSERT_EQ(m.leaked(), 0);
  }
  EXPECT_GT(cuts, 150);
  EXPECT_GT(accepted, 200);
  EXPECT_GT(preempted, 0);
}

}  // namespace
}  // namespace pumice::engine::reasoning_budget_test
