#include "engine/token_filter.h"

#include <gtest/gtest.h>

#include <random>

#include "core/batch.h"
#include "engine/toy.h"
#include "engine/word_filters.h"

namespace pumice::engine::token_filter_test {
namespace {

using toy::text;
using Ids = std::vector<std::int32_t>;

// A filter that allows a token if `allows` returns true for a hash of the answer so far and the token. The answer is complete after `most`
// tokens. After `broken_after` tokens, mask() fails.
class Rule final : public TokenFilter {
 public:
  using Allows = bool (*)(std::uint64_t state, std::int32_t id);
  Rule(Allows allows, std::int64_t most, std::int64_t broken_after = 1 << 20) : allows_(allows), left_(most), broken_after_(broken_after) {}

  void mask(std::span<std::uint32_t> words) override {
    ASSERT_EQ(words.size(), mask_words(toy::kVocab));
    if (broken_after_ <= 0) fail(ErrorKind::unsupported_task, "the rule broke");
    std::ranges::fill(words, 0u);
    for (std::int32_t id = 0; id < toy::kVocab; ++id)
      if (allows_(state_, id)) words[static_cast<std::size_t>(id / 32)] |= 1u << (id % 32);
  }
  bool accept(std::int32_t id) override {
    EXPECT_TRUE(allows_(state_, id));
    state_ = toy::extend(state_, id);
    --broken_after_;
    return --left_ > 0;
  }
  std::unique_ptr<TokenFilter> clone() const override { return std::make_unique<Rule>(*this); }
  bool foresees() const override { return true; }
  // Returns the first allowed id if at most two ids are allowed, otherwise -1.
  std::int32_t foreseen(std::span<const std::uint32_t> words) const override {
    std::int32_t first = -1, count = 0;
    for (std::int32_t id = toy::kVocab; id-- > 0;)
      if (words[static_cast<std::size_t>(id / 32)] >> (id % 32) & 1u) first = id, ++count;
    return count <= 2 ? first : -1;
  }

 private:
  Allows allows_;
  std::uint64_t state_ = 1;
  std::int64_t left_, broken_after_;
};

bool a_third(std::uint64_t state, std::int32_t id) { return toy::mix(state + static_cast<std::uint32_t>(id)) % 3 == 0; }
bool even(std::uint64_t, std::int32_t id) { return id % 2 == 0; }
bool odd(std::uint64_t, std::int32_t id) { return id % 2 == 1; }
bool one_or_two(std::uint64_t state, std::int32_t id) {
  const auto vocab = static_cast<std::uint64_t>(toy::kVocab), wanted = static_cast<std::uint64_t>(id);
  return wanted == toy::mix(state) % vocab || wanted == toy::mix(state + state % 2) % vocab;
}

struct Answer {
  Ids ids;
  Finish finish = Finish::none;
};

std::vector<Answer> answers(toy::Model& m, const std::vector<Ids>& prompts, const GenerateParams& params, Timings* timings = nullptr) {
  const auto request = m.scheduler->request(prompts, params);
  std::vector<Answer> all(static_cast<std::size_t>(request->sequences()));
  while (!request->done()) {
    for (const News& news : toy::advance(*request, 3)) {
      Answer& each = all[static_cast<std::size_t>(news.sequence)];
      each.ids.insert(each.ids.end(), news.ids.begin(), news.ids.end());
      if (news.finish != Finish::none) each.finish = news.finish;
    }
  }
  if (timings) *timings = request->timings();
  return all;
}

// Returns the answer that a sequence must get. It runs alone, without a scheduler, and chooses tokens from whole rows of logits in which
// those of forbidden tokens are -1e30.
Answer expected(Ids ids, const GenerateParams& params, std::uint64_t number) {
  const std::uint64_t seed = seed_of_answer(*params.sampling.seed, number);
  Answer answer;
  std::vector<std::unique_ptr<TokenFilter>> filters;
  for (const auto& filter : params.filters) filters.push_back(filter->clone());
  TokenCounts seen;
  for (const std::int32_t id : ids) seen.add(id, false);
  std::optional<float> mu;
  while (answer.finish == Finish::none) {
    auto row = toy::logits_after(ids);
    for (const auto& filter : filters) {
      std::vector<std::uint32_t> mask(mask_words(toy::kVocab));
      filter->mask(mask);
      for (std::int32_t id = 0; id < toy::kVocab; ++id)
        if ((mask[static_cast<std::size_t>(id / 32)] >> (id % 32) & 1u) == 0) row[static_cast<std::size_t>(id)] = -1e30f;
    }
    Choice choice;
    Sampler().choose(params.sampling, row, seen, {seed, 0, answer.ids.size()}, choice, {.ids = ids, .mu = mu});
    mu = choice.mu;
    if (std::ranges::find(params.eos_ids, choice.id) != params.eos_ids.end()) {
      answer.finish = Finish::eos;
      break;
    }
    ids.push_back(choice.id);
    answer.ids.push_back(choice.id);
    seen.add(choice.id, true);
    bool complete = false;
    for (const auto& filter : filters) complete = !filter->accept(choice.id) || complete;
    if (complete) {
      answer.finish = Finish::grammar;
    } else if (static_cast<std::int64_t>(answer.ids.size()) == params.max_new_tokens) {
      answer.finish = Finish::length;
    }
  }
  return answer;
}

TEST(TokenFilters, HoldInAnyBatchAndWithGuesses) {
  std::mt19937_64 random(3);
  std::int64_t accepted = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<Ids> prompts;
    for (std::uint64_t i = 0; i < 1 + random() % 7; ++i)
      prompts.push_back(text(100 * static_cast<std::uint64_t>(trial) + i, 1 + random() % 70));
    GenerateParams params{.max_new_tokens = static_cast<std::int64_t>(1 + random() % 60), .n = static_cast<std::int32_t>(1 + random() % 3)};
    params.filters.push_back(std::make_shared<Rule>(a_third, trial % 4 == 0 ? 1 + static_cast<std::int64_t>(random() % 40) : 1000));
    if (trial % 3 == 0) params.filters.push_back(std::make_shared<Rule>(even, 1000));
    const bool foreseen = trial % 4 == 3;
    if (foreseen) params.filters = {std::make_shared<Rule>(one_or_two, 1000)};
    params.eos_ids = {static_cast<std::int32_t>(random() % toy::kVocab)};
    SamplingParams& s = params.sampling;
    s.seed = static_cast<std::uint64_t>(trial);
    if (trial % 3) s.temperature = 0.5f + 0.2f * static_cast<float>(trial % 5);
    if (trial % 4 == 1) s.top_k = 5;
    if (trial % 4 == 2) s.repetition_penalty = 1.3f, s.frequency_penalty = 0.4f;
    if (trial % 5 == 4) s.min_p = 0.05f;
    if (trial % 7 == 3) s.dry_multiplier = 3, s.dry_allowed_length = 1, s.dry_range = 50;
    if (trial % 7 == 4) s.mirostat_tau = 2;
    if (trial % 7 == 5) s.xtc_probability = 0.5f, s.top_n_sigma = 1.5f;
    std::vector<Answer> wanted;
    for (std::size_t p = 0; p < prompts.size(); ++p)
      for (std::int32_t i = 0; i < params.n; ++i) wanted.push_back(expected(prompts[p], params, static_cast<std::uint64_t>(i)));

    toy::Model m(trial % 6 == 5 ? 9 : 1000);  // with nine pages, sequences are preempted and begin again
    if (foreseen) params.speculation.always = true;
    if (trial % 2 && trial % 8 != 7) {
      for (const Answer& each : wanted) params.speculation.replay.push_back(each.ids);
      for (Ids& ids : params.speculation.replay)
        for (std::int32_t& id : ids)
          if (random() % 5 == 0) id = static_cast<std::int32_t>(random() % toy::kVocab);
      params.speculation.always = true;
      params.speculation.most = static_cast<std::int32_t>(1 + random() % 8);
    }
    // These sequences without filters run in the same batches.
    const auto free = m.scheduler->request({text(7, 30), text(8, 3)}, GenerateParams{.max_new_tokens = 40});
    free->wait(1, 0);
    Timings timings;
    const auto found = answers(m, prompts, params, &timings);
    accepted += timings.accepted_tokens;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(found[i].ids, wanted[i].ids) << trial << ", sequence " << i;
      ASSERT_EQ(found[i].finish, wanted[i].finish) << trial;
    }
    Ids said;
    while (!free->done())
      for (const News& news : toy::advance(*free, 9))
        if (news.sequence == 0) said.insert(said.end(), news.ids.begin(), news.ids.end());
    ASSERT_EQ(said, toy::continuation(text(7, 30), 40));
    ASSERT_EQ(m.leaked(), 0);
  }
  EXPECT_GT(accepted, 500);
}

TEST(TokenFilters, ThatFailEndTheirRequestAlone) {
  const auto broken = [](std::int64_t after) {
    GenerateParams params{.max_new_tokens = 50};
    params.filters = {std::make_shared<Rule>(even, 1000, after)};
    return params;
  };
  GenerateParams contradiction{.max_new_tokens = 50};
  contradiction.filters = {std::make_shared<Rule>(even, 1000), std::make_shared<Rule>(odd, 1000)};
  GenerateParams banned{.max_new_tokens = 50};
  banned.filters = {std::make_shared<Rule>(even, 1000)};
  for (std::int32_t id = 0; id < toy::kVocab; id += 2) banned.sampling.logit_bias.emplace_back(id, -std::numeric_limits<float>::infinity());
  for (const bool guesses : {false, true}) {
    struct Case {
      GenerateParams params;
      ErrorKind kind;
      const char* what;
      std::size_t tokens;
    };
    for (Case& each : std::vector<Case>{{broken(0), ErrorKind::unsupported_task, "sequence 0, position 20: the rule broke", 0},
                                        {broken(7), ErrorKind::unsupported_task, "sequence 0, position 27: the rule broke", 7},
                                        {contradiction, ErrorKind::invalid_argument, "nothing that the token filters allow is left", 0},
                                        {banned, ErrorKind::invalid_argument, "logit_bias forbids every token", 0}}) {
      toy::Model m;
      if (guesses) {
        GenerateParams sound = broken(1 << 20);
        const Ids right = expected(
                              text(1, 20),
                              [&] {
                                sound.sampling.seed = 1;
                                return sound;
                              }(),
                              0)
                              .ids;
        each.params.speculation = {.most = 5, .always = true, .replay = {right}};
      }
      const auto other = m.scheduler->request({text(9, 40)}, GenerateParams{.max_new_tokens = 60});
      other->wait(1, 0);
      const auto request = m.scheduler->request({text(1, 20)}, each.params);
      std::size_t tokens = 0;
      std::string message;
      EXPECT_EQ(toy::error_of(
                    [&] {
                      for (;;)
                        for (const News& news : toy::advance(*request, 3)) tokens += news.ids.size();
                    },
                    &message),
                each.kind);
      EXPECT_NE(message.find(each.what), std::string::npos) << message;
      EXPECT_EQ(tokens, each.tokens) << message;
      Ids said;
      while (!other->done())
        for (const News& news : toy::advance(*other, 9)) said.insert(said.end(), news.ids.begin(), news.ids.end());
      EXPECT_EQ(said, toy::continuation(text(9, 40), 60));
      EXPECT_EQ(m.leaked(), 0);
    }
  }
}

TEST(TokenFilters, MinNewTokensHoldsBackEndsAlone) {
  const Ids prompt = text(3, 20), free = toy::continuation(prompt, 40);
  GenerateParams params{.max_new_tokens = 40};
  params.eos_ids = {free[2], free[9]};
  toy::Model m;
  EXPECT_EQ(answers(m, {prompt}, params)[0].ids, Ids(free.begin(), free.begin() + 2));
  params.min_new_tokens = 12;
  params.stop_ids = {free[5]};
  const Ids found = answers(m, {prompt}, params)[0].ids;
  EXPECT_GE(found.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) {
    auto row = toy::logits_after([&] {
      Ids ids = prompt;
      ids.insert(ids.end(), found.begin(), found.begin() + static_cast<std::ptrdiff_t>(i));
      return ids;
    }());
    for (const std::int32_t id : {free[2], free[9], free[5]}) row[static_cast<std::size_t>(id)] = -1e30f;
    EXPECT_EQ(found[i], std::ranges::max_element(row) - row.begin()) << i;
  }
  std::string message;
  params.min_new_tokens = 41;
  EXPECT_EQ(toy::error_of([&] { m.scheduler->request({prompt}, params); }, &message), ErrorKind::invalid_argument);
  EXPECT_NE(message.find("min_new_tokens=41 is more than max_new_tokens=40"), std::string::npos) << message;
}

// The expected tokens come from a check of each token by itself, as in transformers: the last id of a bad word is forbidden if the text
// ends in the word's other ids.
TEST(TokenFilters, BadWordsNeverComeWhole) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 40; ++trial) {
    const Ids prompt = text(static_cast<std::uint64_t>(trial), 1 + random() % 20);
    GenerateParams params{.max_new_tokens = 30};
    const Ids free = toy::continuation(prompt, 30);
    Ids all = prompt;
    all.insert(all.end(), free.begin(), free.end());
    for (std::size_t i = 0; i < 1 + random() % 6; ++i) {  // words that would be generated; some begin in the prompt
      const std::size_t end = prompt.size() + 1 + random() % 20, length = std::min<std::size_t>(end, 1 + random() % 4);
      params.bad_words.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(end - length),
                                    all.begin() + static_cast<std::ptrdiff_t>(end));
    }
    Ids ids = prompt, wanted;
    while (wanted.size() < 30) {
      auto row = toy::logits_after(ids);
      for (const Ids& word : params.bad_words) {
        const std::size_t before = word.size() - 1;
        if (ids.size() >= before && std::equal(word.begin(), word.end() - 1, ids.end() - static_cast<std::ptrdiff_t>(before)))
          row[static_cast<std::size_t>(word.back())] = -1e30f;
      }
      wanted.push_back(static_cast<std::int32_t>(std::ranges::max_element(row) - row.begin()));
      ids.push_back(wanted.back());
    }
    toy::Model m;
    EXPECT_NE(wanted, free);
    ASSERT_EQ(answers(m, {prompt}, params)[0].ids, wanted) << trial;
    params.speculation = {.most = 6, .always = true, .replay = {trial % 2 ? wanted : free}};
    ASSERT_EQ(answers(m, {prompt}, params)[0].ids, wanted) << trial;
  }
}

// With shows_logits, a caller that changes no logits must get the same tokens as without this option. A caller that answers late, or never,
// must not affect others.
TEST(TokenFilters, CallersThatChangeLogitsAreWaitedForByNobodyElse) {
  std::mt19937 random(13);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<Ids> prompts;
    for (std::uint64_t i = 0; i < 1 + random() % 4; ++i) prompts.push_back(text(70 + i, 1 + random() % 70));
    GenerateParams params{.max_new_tokens = 25, .n = static_cast<std::int32_t>(1 + random() % 3)};
    params.sampling.seed = 4;
    if (trial % 2) params.sampling.temperature = 1;
    if (trial % 3 == 0) params.sampling.repetition_penalty = 1.4f;
    if (trial % 4 == 0) params.bad_words = {{5}, {6, 7}};
    if (trial % 5 == 0) params.sampling.logprobs = 2;
    toy::Model plain, m(trial % 6 == 5 ? 9 : 1000);
    const auto wanted = answers(plain, prompts, params);
    params.shows_logits = true;
    params.speculation = {.most = 4, .always = true, .replay = {Ids(25, 3)}};  // has no effect with shows_logits
    const auto other = m.scheduler->request({text(9, 33)}, GenerateParams{.max_new_tokens = 50});
    const auto request = m.scheduler->request(prompts, params);
    const auto leaves = m.scheduler->request(prompts, params);  // its caller never answers
    leaves->wait(1, 1e9);
    EXPECT_FALSE(leaves->shown().empty());
    EXPECT_TRUE(leaves->take().empty());
    if (trial % 2) leaves->close();
    Ids said;
    while (!other->done())
      for (const News& news : toy::advance(*other, 9)) said.insert(said.end(), news.ids.begin(), news.ids.end());
    ASSERT_EQ(said, toy::continuation(text(9, 33), 50));
    std::vector<Ids> found(wanted.size());
    while (!request->done()) {
      request->wait(3, 1e9);
      auto shown = request->shown();
      std::ranges::shuffle(shown, random);
      for (const auto& [sequence, ids, logits] : shown) {
        ASSERT_EQ(logits, toy::logits_after(ids));
        if (random() % 4 == 0) continue;  // answers later
        request->answer(sequence, logits);
      }
      for (const News& news : request->take()) {
        Ids& ids = found[static_cast<std::size_t>(news.sequence)];
        ids.insert(ids.end(), news.ids.begin(), news.ids.end());
      }
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_EQ(found[i], wanted[i].ids) << trial << ", sequence " << i;
    leaves->close();
    ASSERT_EQ(m.leaked(), 0);
  }
}

TEST(TokenFilters, AnswersAreChecked) {
  toy::Model m;
  GenerateParams params{.max_new_tokens = 5, .shows_logits = true};
  const auto request = m.scheduler->request({text(1, 5)}, params);
  request->wait(1, 1e9);
  auto row = request->shown().at(0).logits;
  const auto refused = [&](const char* what) {
    std::string message;
    EXPECT_EQ(toy::error_of([&] { request->answer(0, row); }, &message), ErrorKind::invalid_argument);
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  row[7] = std::nanf("");
  refused("the logit of token 7 was made nan");
  row[7] = std::numeric_limits<float>::infinity();
  refused("the logit of token 7 was made inf");
  row.pop_back();
  row[7] = 0;
  refused("210 logits for a vocabulary of 211");
  row.assign(toy::kVocab, -std::numeric_limits<float>::infinity());
  request->answer(0, row);
  std::string message;
  EXPECT_EQ(toy::error_of(
                [&] {
                  for (;;) toy::advance(*request, 1);
                },
                &message),
            ErrorKind::invalid_argument);
  EXPECT_NE(message.find("sequence 0, position 5: nothing that the token filters allow is left"), std::string::npos) << message;
  EXPECT_EQ(m.leaked(), 0);
}

TEST(TokenFilters, EachPromptHasItsParameters) {
  toy::Model m;
  std::vector<Ids> prompts;
  std::vector<GenerateParams> params;
  for (std::uint64_t i = 0; i < 6; ++i) {
    prompts.push_back(text(i % 4, 12));  // some prompts come twice
    GenerateParams& each = params.emplace_back();
    each.max_new_tokens = static_cast<std::int64_t>(5 + 3 * i);
    each.n = 2;
    each.sampling.temperature = i % 3 == 0 ? 0.0f : 0.7f * static_cast<float>(i);
    each.sampling.seed = i;
    if (i % 2) each.bad_words = {{static_cast<std::int32_t>(i)}};
  }
  const auto request = m.scheduler->request(prompts, params);
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t i = 0; i < 6; ++i) seeds.insert(seeds.end(), {i, seed_of_answer(i, 1)});
  EXPECT_EQ(request->seeds(), seeds);
  std::vector<Ids> found(12);
  while (!request->done())
    for (const News& news : toy::advance(*request, 3)) {
      Ids& ids = found[static_cast<std::size_t>(news.sequence)];
      ids.insert(ids.end(), news.ids.begin(), news.ids.end());
    }
  for (std::size_t i = 0; i < 6; ++i) {
    const auto alone = answers(m, {prompts[i]}, params[i]);
    EXPECT_EQ(found[2 * i], alone[0].ids) << i;
    EXPECT_EQ(found[2 * i + 1], alone[1].ids) << i;
  }
  std::string message;
  params.pop_back();
  EXPECT_EQ(toy::error_of([&] { m.scheduler->request(prompts, params); }, &message), ErrorKind::invalid_argument);
  EXPECT_NE(message.find("5 sets of parameters for 6 prompts"), std::string::npos) << message;
}

}  // namespace
}  // namespace pumice::engine::token_filter_test
