#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "engine/settings.h"
#include "engine/toy.h"
#include "patience.h"

namespace pumice::engine {
namespace {

std::vector<float> row(std::size_t size, unsigned seed, double spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> logits(size);
  for (float& x : logits) x = static_cast<float>(normal(random));
  return logits;
}

// Returns the distribution that SamplingParams describe. It is computed in the plainest way: with sorts, doubles, and one filter after the
// other.
std::vector<double> reference(std::vector<float> logits, const SamplingParams& p, const TokenCounts& seen) {
  seen.each([&](std::int32_t id, std::int32_t generated) {
    float& x = logits[id];
    x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
    if (generated) x -= p.presence_penalty + static_cast<float>(generated) * p.frequency_penalty;
  });
  for (const auto& [id, bias] : p.logit_bias) logits[id] += bias;
  const std::size_t n = logits.size();
  std::vector<double> probability(n);
  const double top = *std::max_element(logits.begin(), logits.end());
  for (std::size_t i = 0; i < n; ++i) probability[i] = std::exp((logits[i] - top) / p.temperature);
  const auto normalise = [&] {
    const double total = std::accumulate(probability.begin(), probability.end(), 0.0);
    for (double& x : probability) x /= total;
  };
  const auto order_by = [&](const std::vector<double>& rank) {
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank[a] > rank[b]; });
    return order;
  };
  const auto keep_mass = [&](const std::vector<std::size_t>& order, double mass) {
    double sum = 0;
    for (const std::size_t i : order) {
      if (sum >= mass && sum > 0) {
        probability[i] = 0;
      } else {
        sum += probability[i];
      }
    }
    normalise();
  };
  const std::vector<double> by_logit(logits.begin(), logits.end());
  normalise();
  if (p.top_n_sigma > 0) {
    const double mean = std::accumulate(by_logit.begin(), by_logit.end(), 0.0) / static_cast<double>(n);
    double square = 0;
    for (const double x : by_logit) square += (x - mean) * (x - mean);
    for (std::size_t i = 0; i < n; ++i)
      if (by_logit[i] < top - p.top_n_sigma * std::sqrt(square / static_cast<double>(n))) probability[i] = 0;
    normalise();
  }
  if (p.top_k > 0) {
    const auto order = order_by(by_logit);
    for (std::size_t i = static_cast<std::size_t>(p.top_k); i < n; ++i) probability[order[i]] = 0;
    normalise();
  }
  if (p.typical_p < 1) {
    double entropy = 0;
    for (const double x : probability)
      if (x > 0) entropy -= x * std::log(x);
    std::vector<double> rank(n);
    for (std::size_t i = 0; i < n; ++i) rank[i] = probability[i] > 0 ? -std::fabs(-std::log(probability[i]) - entropy) : -1e300;
    keep_mass(order_by(rank), p.typical_p);
  }
  if (p.top_p < 1) {
    std::vector<double> rank = by_logit;
    for (std::size_t i = 0; i < n; ++i)
      if (probability[i] == 0) rank[i] = -1e300;
    keep_mass(order_by(rank), p.top_p);
  }
  if (p.min_p > 0) {
    const double most = *std::max_element(probability.begin(), probability.end());
    for (double& x : probability)
      if (x < p.min_p * most) x = 0;
    normalise();
  }
  std::vector<double> result(n);
  for (const bool happens : {false, true}) {  // without and with XTC
    const double chance = happens ? p.xtc_probability : 1 - static_cast<double>(p.xtc_probability);
    if (chance == 0) continue;
    auto left = probability;
    if (happens) {
      std::vector<std::size_t> likely;
      for (const std::size_t i : order_by(by_logit))
        if (left[i] > 0 && left[i] >= p.xtc_threshold) likely.push_back(i);
      for (std::size_t i = 0; i + 1 < likely.size(); ++i) left[likely[i]] = 0;
    }
    const auto sum = [&] { return std::accumulate(left.begin(), left.end(), 0.0); };
    if (p.mirostat_tau > 0) {  // the first step, where mu is 2 tau
      const double total = sum(), least = std::exp2(-2.0 * p.mirostat_tau);
      const auto best = std::max_element(left.begin(), left.end()) - left.begin();
      for (std::size_t i = 0; i < n; ++i)
        if (left[i] / total < least && static_cast<std::ptrdiff_t>(i) != best) left[i] = 0;
    }
    const double total = sum();
    for (std::size_t i = 0; i < n; ++i) result[i] += chance * left[i] / total;
  }
  return result;
}

// Compares draws with the reference distribution. A token of probability 0 must never be drawn. The chi-square statistic must be below its
// mean plus 5 standard deviations; tokens that are expected fewer than 10 times count as one class.
void check_distribution(const std::vector<float>& logits, const SamplingParams& p, const TokenCounts& seen, const char* what) {
  const auto expected = reference(logits, p, seen);
  const int draws = 8000;
  std::vector<int> counts(logits.size());
  Sampler sampler;
  std::vector<float> work = logits;
  Choice choice;
  for (int i = 0; i < draws; ++i) {
    sampler.choose(p, work, seen, {12345, 7, static_cast<std::uint64_t>(i)}, choice);
    ++counts[static_cast<std::size_t>(choice.id)];
  }
  EXPECT_EQ(work, logits) << what;
  double chi = 0, rest_expected = 0, rest_seen = 0;
  int classes = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << what << ", token " << i;
    }
    const double e = expected[i] * draws;
    if (e < 10) {
      rest_expected += e;
      rest_seen += counts[i];
      continue;
    }
    chi += (counts[i] - e) * (counts[i] - e) / e;
    ++classes;
  }
  if (rest_expected >= 10) {
    chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++classes;
  }
  const double freedom = std::max(0, classes - 1);
  EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom) + 1) << what;
}

TEST(Sampler, DrawsFromTheDistribution) {
  TokenCounts none;
  for (const std::size_t size : {1u, 5u, 63u, 64u, 65u, 1000u}) {
    const auto logits = row(size, 11 + static_cast<unsigned>(size));
    const auto check = [&](const char* what, auto&& set) {
      SamplingParams p;
      p.temperature = 1;
      set(p);
      SCOPED_TRACE(size);
      check_distribution(logits, p, none, what);
    };
    check("temperature 1", [](auto&) {});
    check("temperature 0.3", [](auto& p) { p.temperature = 0.3f; });
    check("temperature 5", [](auto& p) { p.temperature = 5; });
    check("top_k 3", [](auto& p) { p.top_k = 3; });
    check("top_k 40", [](auto& p) { p.top_k = 40, p.temperature = 2; });
    check("top_k 900", [](auto& p) { p.top_k = 900, p.temperature = 3; });
    check("top_p 0.9", [](auto& p) { p.top_p = 0.9f; });
    check("top_p 0.999", [](auto& p) { p.top_p = 0.999f, p.temperature = 4; });
    check("top_p 0", [](auto& p) { p.top_p = 0; });
    check("min_p 0.05", [](auto& p) { p.min_p = 0.05f; });
    check("typical_p 0.5", [](auto& p) { p.typical_p = 0.5f, p.temperature = 2; });
    check("typical_p 0.9 and top_p 0.7", [](auto& p) { p.typical_p = 0.9f, p.top_p = 0.7f, p.temperature = 2; });
    check("top_n_sigma 1", [](auto& p) { p.top_n_sigma = 1; });
    check("top_n_sigma 0.3 and top_p", [](auto& p) { p.top_n_sigma = 0.3f, p.top_p = 0.8f, p.temperature = 3; });
    check("top_n_sigma 2 and top_k 4", [](auto& p) { p.top_n_sigma = 2, p.top_k = 4; });
    check("xtc always", [](auto& p) { p.xtc_probability = 1, p.xtc_threshold = 0.05f; });
    check("xtc sometimes", [](auto& p) { p.xtc_probability = 0.4f, p.xtc_threshold = 0.01f, p.min_p = 0.01f; });
    check("xtc of the likeliest alone", [](auto& p) { p.xtc_probability = 1, p.xtc_threshold = 0.51f; });
    check("mirostat", [](auto& p) { p.mirostat_tau = 2; });
    check("mirostat 0.01", [](auto& p) { p.mirostat_tau = 0.01f, p.top_k = 20; });
    check("all of them", [](auto& p) {
      p.top_n_sigma = 2, p.top_k = 30, p.top_p = 0.95f, p.xtc_probability = 0.5f, p.mirostat_tau = 1.5f, p.temperature = 1.7f;
    });
    check("all", [](auto& p) { p.top_k = 30, p.typical_p = 0.95f, p.top_p = 0.9f, p.min_p = 0.02f, p.temperature = 1.7f; });
  }
}

// Returns the DRY penalties by their definition: tries every position and every length of a match.
std::map<std::int32_t, float> slow_dry(const SamplingParams& p, std::vector<std::int32_t> ids) {
  if (p.dry_range > 0 && static_cast<std::size_t>(p.dry_range) < ids.size()) ids.erase(ids.begin(), ids.end() - p.dry_range);
  const auto breaks = [&](std::int32_t id) { return std::find(p.dry_breakers.begin(), p.dry_breakers.end(), id) != p.dry_breakers.end(); };
  std::map<std::int32_t, float> all;
  const auto size = static_cast<std::ptrdiff_t>(ids.size());
  for (std::ptrdiff_t n = p.dry_allowed_length; n <= 50; ++n) {
    if (n > size || std::any_of(ids.end() - n, ids.end(), breaks)) break;
    for (std::ptrdiff_t first = 0; first + n < size; ++first)
      if (std::equal(ids.end() - n, ids.end(), ids.begin() + first) && !breaks(ids[static_cast<std::size_t>(first + n)]))
        all[ids[static_cast<std::size_t>(first + n)]] =
            static_cast<float>(p.dry_multiplier * std::pow(p.dry_base, n - p.dry_allowed_length));
  }
  return all;
}

TEST(Sampler, DryTakesFromWhatWouldGoOnWithARepetition) {
  std::mt19937 random(9);
  int found = 0, long_ones = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::int32_t> ids(random() % 120);
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % (round % 2 ? 3 : 12));
    if (round % 10 == 0) ids.assign(130, 1);  // longer than the longest match that counts
    SamplingParams p;
    p.dry_multiplier = 0.8f;
    p.dry_base = round % 3 ? 1.75f : 1.0f;
    p.dry_allowed_length = 1 + static_cast<std::int32_t>(random() % 4);
    p.dry_range = random() % 3 ? 0 : 1 + static_cast<std::int32_t>(random() % 60);
    if (round % 4 == 0) p.dry_breakers = {2, 7};
    check(p, 100);
    std::vector<std::pair<std::int32_t, float>> penalties;
    dry_penalties(p, ids, penalties);
    const auto expected = slow_dry(p, ids);
    ASSERT_EQ(penalties.size(), expected.size()) << round;
    auto next = expected.begin();
    for (const auto& [id, penalty] : penalties) {
      ASSERT_EQ(id, next->first);
      ASSERT_NEAR(penalty / next->second, 1, 1e-4) << round;
      long_ones += penalty > 10;
      ++next;
    }
    found += !penalties.empty();
    auto logits = row(100, static_cast<unsigned>(round)), changed = logits;
    for (const auto& [id, penalty] : penalties) changed[static_cast<std::size_t>(id)] -= penalty;
    Choice choice;
    Sampler().choose(p, logits, {}, {}, choice, {.ids = ids});
    ASSERT_EQ(choice.id, std::max_element(changed.begin(), changed.end()) - changed.begin());
  }
  EXPECT_GT(found, 1000);
  EXPECT_GT(long_ones, 50);
}

TEST(Sampler, MirostatFollowsTheSurprise) {
  for (const float tau : {0.5f, 2.0f, 5.0f}) {
    SamplingParams p;
    p.temperature = 1;
    p.mirostat_tau = tau;
    p.mirostat_eta = 0.2f;
    std::optional<float> mu;
    double expected_mu = 2 * tau, surprises = 0;
    Sampler sampler;
    for (std::uint64_t step = 0; step < 400; ++step) {
      auto logits = row(500, static_cast<unsigned>(step), 2);
      const auto all = reference(logits,
                                 [&] {
                                   auto q = p;
                                   q.mirostat_tau = 0;
                                   return q;
                                 }(),
                                 {});
      const double most = *std::max_element(all.begin(), all.end());
      double total = 0;
      const auto stays = [&](double x) { return x == most || x >= std::exp2(-expected_mu); };
      for (const double x : all) total += stays(x) ? x : 0;
      Choice choice;
      sampler.choose(p, logits, {}, {1, 2, step}, choice, {.mu = mu});
      const double chance = all[static_cast<std::size_t>(choice.id)];
      ASSERT_TRUE(stays(chance));
      expected_mu -= 0.2 * (-std::log2(chance / total) - tau);
      surprises += -std::log2(chance / total);
      ASSERT_NEAR(choice.mu, expected_mu, 1e-3) << step;
      mu = choice.mu;
      expected_mu = choice.mu;
    }
    EXPECT_NEAR(surprises / 400, tau, 0.25);
  }
}

TEST(Sampler, PenaltiesAndBias) {
  const auto logits = row(100, 5);
  TokenCounts seen;
  for (std::int32_t id = 0; id < 40; ++id) seen.add(id, false);
  for (std::int32_t id = 20; id < 60; ++id)
    for (std::int32_t times = 0; times < id % 4; ++times) seen.add(id, true);
  SamplingParams p;
  p.temperature = 1.5f;
  p.repetition_penalty = 1.3f;
  check_distribution(logits, p, seen, "repetition");
  p.presence_penalty = 0.5f, p.frequency_penalty = 0.7f;
  check_distribution(logits, p, seen, "all penalties");
  p.logit_bias = {{3, 4.0f}, {50, -3.0f}, {3, 1.0f}};
  check_distribution(logits, p, seen, "penalties and bias");
  p.top_k = 20, p.top_p = 0.9f;
  check_distribution(logits, p, seen, "penalties, bias and filters");

  SamplingParams ban;
  const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  ban.logit_bias = {{best, -std::numeric_limits<float>::infinity()}};
  auto work = logits;
  Choice choice;
  Sampler().choose(ban, work, {}, {}, choice);
  auto without = logits;
  without[best] = -1e9f;
  EXPECT_EQ(choice.id, std::max_element(without.begin(), without.end()) - without.begin());
  EXPECT_EQ(work, logits);
}

TEST(Sampler, WhatIsForbiddenIsNeverDrawn) {
  constexpr float kForbid = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits = row(200, 5);
  for (const float temperature : {0.0f, 1.0f, 1e6f}) {
    for (const bool filtered : {false, true}) {
      SamplingParams p;
      p.temperature = temperature;
      if (filtered) p.top_k = 150, p.top_p = 0.9f, p.typical_p = 0.95f;
      for (std::int32_t id = 0; id < 200; ++id)
        if (id != 17 && id != 60) p.logit_bias.emplace_back(id, kForbid);
      p.logit_bias.emplace_back(60, -1e20f);
      check(p, 200);
      Sampler sampler;
      Choice choice;
      std::vector<float> changed = logits;
      for (std::uint64_t step = 0; step < 200; ++step) {
        sampler.choose(p, changed, {}, {3, 0, step}, choice);
        ASSERT_EQ(choice.id, 17) << temperature;
      }
      p.logit_bias.emplace_back(17, kForbid);
      p.logit_bias.emplace_back(60, kForbid);
      Sampler nothing;
      std::string message;
      EXPECT_EQ(toy::error_of([&] { nothing.choose(p, changed, {}, {3, 0, 0}, choice); }, &message), ErrorKind::invalid_argument);
      EXPECT_NE(message.find("forbids every token"), std::string::npos);
      EXPECT_EQ(changed, logits);
    }
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOfTies) {
  Sampler sampler;
  Choice choice;
  for (const std::size_t size : {1u, 3u, 64u, 100u, 1000u, 4099u}) {
    auto logits = row(size, 1);
    std::mt19937 random(static_cast<unsigned>(size));
    for (int i = 0; i < 200; ++i) {
      std::vector<std::size_t> at(1 + random() % 3);
      auto work = logits;
      for (auto& a : at) work[a = random() % size] = 1000;
      sampler.choose({}, work, {}, {}, choice);
      ASSERT_EQ(choice.id, static_cast<std::int32_t>(*std::min_element(at.begin(), at.end())));
    }
  }
  std::vector<float> equal(500, -3.0f);
  sampler.choose({}, equal, {}, {}, choice);
  EXPECT_EQ(choice.id, 0);
  SamplingParams two;
  two.temperature = 1, two.top_k = 2;
  Sampler top;
  for (std::uint64_t i = 0; i < 100; ++i) {
    top.choose(two, equal, {}, {3, 0, i}, choice);
    EXPECT_LT(choice.id, 2);
  }
}

TEST(Sampler, LogProbabilitiesAreThoseOfTheRawLogits) {
  for (const std::size_t size : {5u, 64u, 1000u, 50000u}) {
    auto logits = row(size, 9);
    SamplingParams p;
    p.temperature = 0.7f, p.repetition_penalty = 2, p.logprobs = 5;
    TokenCounts seen;
    for (std::int32_t id = 0; id < 5; ++id) seen.add(id, true);
    Choice choice;
    Sampler().choose(p, logits, seen, {1, 0, 0}, choice);
    double total = 0;
    for (const float x : logits) total += std::exp(static_cast<double>(x));
    EXPECT_NEAR(choice.logprob, logits[choice.id] - std::log(total), 2e-6);
    std::vector<std::int32_t> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
    order.resize(5);
    EXPECT_EQ(choice.top_ids, order);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(choice.top_logprobs[i], logits[order[i]] - std::log(total), 2e-6);
  }
}

TEST(Sampler, NumbersThatAreNoneAreErrors) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t size : {1u, 70u, 500u}) {
      for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
        for (const float temperature : {0.0f, 1.0f}) {
          auto logits = row(size, 2);
          logits[at] = bad;
          SamplingParams p;
          p.temperature = temperature;
          p.repetition_penalty = 1.1f;
          std::string message;
          Choice choice;
          TokenCounts seen;
          seen.add(static_cast<std::int32_t>(at), true);
          EXPECT_EQ(toy::error_of([&] { Sampler().choose(p, logits, seen, {}, choice); }, &message), ErrorKind::numeric);
          EXPECT_NE(message.find("token " + std::to_string(at)), std::string::npos) << message;
        }
      }
    }
  }
}

TEST(Sampler, ExtremesStayDefined) {
  Choice choice;
  auto logits = row(300, 4);
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  for (const float temperature : {1e-45f, 1e-30f, 1e-6f}) {
    SamplingParams p;
    p.temperature = temperature;
    for (const float top_p : {1.0f, 0.5f}) {
      p.top_p = top_p;
      Sampler().choose(p, logits, {}, {}, choice);
      EXPECT_EQ(choice.id, best);
    }
  }
  logits[17] = 3e38f, logits[18] = -3e38f;
  SamplingParams p;
  p.temperature = 1;
  Sampler().choose(p, logits, {}, {}, choice);
  EXPECT_EQ(choice.id, 17);
}

bool is_set(std::span<const std::uint32_t> mask, std::int32_t id) {
  return (mask[static_cast<std::size_t>(id / 32)] >> (id % 32) & 1u) != 0;
}

// Returns a random mask of one of these kinds: none, full, empty, one id, a few ids, half of the ids, all but a few ids, runs of blocks.
std::vector<std::uint32_t> any_mask(std::size_t size, std::mt19937& random) {
  const int kind = static_cast<int>(random() % 8);
  std::vector<std::uint32_t> mask(kind == 0 ? 0 : mask_words(static_cast<std::int64_t>(size)), kind == 1 || kind == 6 ? ~0u : 0u);
  const auto some = [&](std::size_t count, bool set) {
    for (; count > 0; --count) {
      const std::size_t id = random() % size;
      if (set)
        mask[id / 32] |= 1u << id % 32;
      else
        mask[id / 32] &= ~(1u << id % 32);
    }
  };
  if (kind == 3) some(1, true);
  if (kind == 4) some(5, true);
  if (kind == 5)
    for (std::uint32_t& word : mask) word = static_cast<std::uint32_t>(random());
  if (kind == 6) some(5, false);
  if (kind == 7)
    for (std::size_t w = 0; w < mask.size(); ++w) mask[w] = random() % 3 == 0 ? ~0u : w / 4 % 2 ? 0u : static_cast<std::uint32_t>(random());
  return mask;
}

TEST(Sampler, ChoosesAmongWhatIsAllowedAsIfTheRestWereFarAway) {
  std::mt19937 random(11);
  const auto one_of = [&](std::initializer_list<float> values) { return *(values.begin() + random() % values.size()); };
  int chosen = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::size_t size = 1 + random() % (round % 4 == 0 ? 70 : 2000);
    const auto logits = row(size, static_cast<unsigned>(round), one_of({0.3f, 3, 10}));
    const auto mask = any_mask(size, random);
    SamplingParams p;
    p.temperature = one_of({0, 0.3f, 1, 1, 5});
    p.top_k = random() % 3 ? 0 : 1 + static_cast<std::int32_t>(random() % 60);
    p.top_p = one_of({1, 1, 0.9f});
    p.min_p = one_of({0, 0, 0.1f});
    p.typical_p = one_of({1, 1, 0.8f});
    p.presence_penalty = one_of({0, 0, 2});
    p.logprobs = random() % 4 ? -1 : 2;
    if (size < 3) p.logprobs = -1;
    TokenCounts seen;
    for (int i = 0; i < 5; ++i) seen.add(static_cast<std::int32_t>(random() % size), true);
    auto far = logits;
    bool any = mask.empty();
    for (std::size_t id = 0; id < size; ++id) {
      const bool allowed = mask.empty() || is_set(mask, static_cast<std::int32_t>(id));
      any = any || allowed;
      if (!allowed) far[id] = -1e30f;
    }
    auto work = logits;
    Choice found, expected;
    const Draw draw{static_cast<std::uint64_t>(round), 1, 2};
    if (!any) {
      std::string message;
      EXPECT_EQ(toy::error_of([&] { Sampler().choose(p, work, seen, draw, found, {.allowed = mask}); }, &message),
                ErrorKind::invalid_argument);
      EXPECT_NE(message.find("nothing that the token filters allow"), std::string::npos);
      continue;
    }
    Sampler().choose(p, work, seen, draw, found, {.allowed = mask});
    Sampler().choose(p, far, seen, draw, expected);
    ASSERT_EQ(found.id, expected.id) << round;
    ASSERT_EQ(work, logits);
    ++chosen;
    if (p.logprobs < 0) continue;
    // Log-probabilities count the whole row, including tokens that the mask forbids, so they must equal those of a choice without a mask.
    p.temperature = 0;
    Sampler().choose(p, work, seen, draw, expected);
    ASSERT_EQ(found.top_ids, expected.top_ids);
    ASSERT_EQ(found.top_logprobs, expected.top_logprobs);
  }
  EXPECT_GT(chosen, 1500);
  auto bad = row(200, 1);
  bad[100] = std::nanf("");
  const std::vector<std::uint32_t> first(mask_words(200), 1u);
  Choice choice;
  // A NaN must be an error even if its id is not allowed.
  EXPECT_EQ(toy::error_of([&] { Sampler().choose({}, bad, {}, {}, choice, {.allowed = first}); }), ErrorKind::numeric);
}

// Returns the row that Top must give for these logits, computed with the plainest code.
std::vector<float> top_of(const std::vector<float>& logits, std::int32_t k, const std::vector<std::int32_t>& reported,
                          std::span<const std::uint32_t> allowed = {}) {
  const auto bits = [](std::int64_t word) { return std::bit_cast<float>(static_cast<std::int32_t>(word)); };
  std::vector<float> words(static_cast<std::size_t>(top_width(k, static_cast<std::int64_t>(reported.size()))));
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  words[0] = bits(std::count_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); }));
  words[1] = bits(bad == logits.end() ? -1 : bad - logits.begin());
  if (bad != logits.end()) words[2] = *bad;
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::erase_if(ids, [&](std::int32_t id) { return std::binary_search(reported.begin(), reported.end(), id); });
  std::erase_if(ids, [&](std::int32_t id) { return !allowed.empty() && !is_set(allowed, id); });
  if (bad == logits.end()) std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(k)));
  words[3] = bits(static_cast<std::int64_t>(ids.size()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    words[kTopHead + i] = logits[ids[i]];
    words[kTopHead + static_cast<std::size_t>(k) + i] = bits(ids[i]);
  }
  for (std::size_t i = 0; i < reported.size(); ++i) words[kTopHead + 2 * static_cast<std::size_t>(k) + i] = logits[reported[i]];
  return words;
}
std::vector<std::int32_t> changed_ids(const SamplingParams& p, const TokenCounts& seen) {
  ChangedIds changed(1 << 20);
  for (const auto& [id, bias] : p.logit_bias) changed.add(id);
  if (p.penalises()) seen.each([&](std::int32_t id, std::int32_t) { changed.add(id); });
  return {changed.ids().begin(), changed.ids().end()};
}

TEST(Sampler, ChoosesFromTheLargestWhatItChoosesFromAll) {
  constexpr std::int32_t kMost = 64;
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto one_of = [&](std::initializer_list<float> values) { return *(values.begin() + below(static_cast<int>(values.size()))); };
  int draws = 0, greedy = 0, not_first = 0;
  for (int round = 0; round < 3000; ++round) {
    const int size = (round % 10 == 0 ? 2 : 66) + below(round % 3 == 0 ? 40 : 3000);
    auto logits = row(static_cast<std::size_t>(size), static_cast<unsigned>(round), one_of({0.1f, 1, 3, 10}));
    if (const float steps = one_of({0, 0, 1, 8}); steps > 0)  // rounds, which makes equal logits
      for (float& x : logits) x = std::nearbyint(x * steps) / steps;
    SamplingParams p;
    p.temperature = one_of({0, 0.05f, 0.7f, 1, 1, 4, 1e6f});
    p.top_k = 1 + below(std::min(kMost, size - 1));
    if (p.greedy() && below(2) == 0) p.top_k = below(500);
    p.typical_p = one_of({1, 1, 0.9f, 0.3f});
    p.top_p = one_of({1, 1, 0.95f, 0.5f, 1e-6f});
    p.min_p = one_of({0, 0, 0.02f, 0.5f, 1});
    p.xtc_probability = one_of({0, 0, 0.5f});
    p.mirostat_tau = one_of({0, 0, 1.5f});
    p.repetition_penalty = one_of({1, 1, 1.2f, 0.8f, 50});
    p.presence_penalty = one_of({0, 0, 0.7f, -2});
    p.frequency_penalty = one_of({0, 0, 0.3f});
    const auto some_id = [&] {  // often returns one of the likeliest ids, so that penalties and biases matter
      int best = below(size);
      for (int i = below(30); i > 0; --i)
        if (const int other = below(size); logits[other] > logits[best]) best = other;
      return best;
    };
    TokenCounts seen;
    for (int i = below(80); i > 0; --i) seen.add(some_id(), below(2) == 0);
    for (int i = below(4) == 0 ? below(40) : 0; i > 0; --i)
      p.logit_bias.emplace_back(some_id(), one_of({1, -1, 5, -30, 1e20f, -1e20f, -std::numeric_limits<float>::infinity()}));
    check(p, size);
    auto reported = changed_ids(p, seen);
    // Sometimes an id is reported although no penalty or bias changes it.
    if (below(5) == 0) reported.insert(reported.end(), 1, 0), std::sort(reported.begin(), reported.end());
    reported.erase(std::unique(reported.begin(), reported.end()), reported.end());
    ASSERT_TRUE(p.needs_only_top(kMost));
    const auto mask = any_mask(static_cast<std::size_t>(size), random);
    const auto words = top_of(logits, kMost, reported, mask);
    Sampler from_all, from_top;
    const std::int32_t first = words[3] == 0 ? -1 : TopRow{words, kMost}.id(0);
    for (std::uint64_t step = 0; step < 4; ++step) {
      Choice expected, found;
      std::string why, why_not;
      const auto refused = [&](auto&& choose, std::string& message) {
        try {
          choose();
        } catch (const Error& error) {
          message = error.what();
        }
      };
      const Draw draw{static_cast<std::uint64_t>(round), 5, step};
      refused([&] { from_all.choose(p, logits, seen, draw, expected, {.allowed = mask}); }, why);
      refused([&] { from_top.choose(p, {words, kMost}, reported, size, seen, draw, found, {.allowed = mask}); }, why_not);
      ASSERT_EQ(found.id, expected.id) << "round " << round << ", step " << step << ", size " << size << ", top_k " << p.top_k;
      ASSERT_EQ(why_not, why) << round;
      ++(p.greedy() ? greedy : draws);
      not_first += expected.id != first;
    }
  }
  EXPECT_GT(draws, 1000);
  EXPECT_GT(greedy, 1000);
  EXPECT_GT(not_first, 2000);
}

TEST(Sampler, RefusesFromTheLargestWhatItRefusesFromAll) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const auto message = [](auto&& choose) {
    std::string text = "none";
    try {
      choose();
    } catch (const Error& error) {
      text = error.what();
    }
    return text;
  };
  const auto same = [&](std::vector<float> logits, SamplingParams p, const TokenCounts& seen, const char* part) {
    p.temperature = 1, p.top_k = 20;
    const auto reported = changed_ids(p, seen);
    const auto words = top_of(logits, 64, reported);
    Choice choice;
    const auto expected = message([&] { Sampler().choose(p, logits, seen, {1, 0, 0}, choice); });
    EXPECT_NE(expected.find(part), std::string::npos) << expected;
    EXPECT_EQ(message([&] { Sampler().choose(p, {words, 64}, reported, 300, seen, {1, 0, 0}, choice); }), expected);
  };
  TokenCounts seen;
  for (const std::int32_t id : {3, 50, 51, 299}) seen.add(id, true);
  SamplingParams penalty;
  penalty.repetition_penalty = 900;
  for (const float bad : {std::nanf(""), kInfinite, -kInfinite}) {
    for (const std::size_t at : {0u, 50u, 60u, 299u}) {
      auto logits = row(300, 3);
      logits[at] = bad;
      for (const auto& p : {SamplingParams{}, penalty}) same(logits, p, seen, ("token " + std::to_string(at)).c_str());
      logits[51] = -3e38f;  // the penalty makes this logit overflow
      same(logits, penalty, seen, at < 51 ? ("token " + std::to_string(at)).c_str() : "token 51");
    }
  }
  SamplingParams nothing;
  for (std::int32_t id = 0; id < 300; ++id) nothing.logit_bias.emplace_back(id, -kInfinite);
  same(row(300, 4), nothing, seen, "forbids every token");
  SamplingParams whole;
  whole.temperature = 1;
  for (const auto& [k, logprobs] : {std::pair{0, -1}, {65, -1}, {20, 0}}) {
    whole.top_k = k, whole.logprobs = logprobs;
    EXPECT_FALSE(whole.needs_only_top(64));
    const auto words = top_of(row(300, 1), 64, {});
    Choice choice;
    EXPECT_NE(message([&] { Sampler().choose(whole, {words, 64}, {}, 300, {}, {1, 0, 0}, choice); }), "none");
  }
}

TEST(Sampler, UniformIsPhiloxAndDependsOnEverything) {
  // These two are known answers of Random123.
  EXPECT_DOUBLE_EQ(uniform(0, 0, 0), static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
  EXPECT_DOUBLE_EQ(uniform(~0ull, ~0ull, ~0ull), static_cast<double>(0x408f276d41c83b0eull >> 11) * 0x1p-53);
  double mean = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) mean += uniform(1, 2, i) / 10000;
  EXPECT_NEAR(mean, 0.5, 0.015);
  EXPECT_NE(uniform(1, 2, 3), uniform(2, 2, 3));
  EXPECT_NE(uniform(1, 2, 3), uniform(1, 3, 3));
  EXPECT_NE(uniform(1, 2, 3), uniform(1, 2, 4));
}

TEST(Sampler, CountsAreExact) {
  TokenCounts counts;
  std::map<std::int32_t, std::int32_t> expected;
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    const auto id = static_cast<std::int32_t>(random() % 1500);
    const bool generated = random() % 2;
    counts.add(id, generated);
    expected[id] += generated;
  }
  std::map<std::int32_t, std::int32_t> found;
  counts.each([&](std::int32_t id, std::int32_t generated) { EXPECT_TRUE(found.emplace(id, generated).second); });
  EXPECT_EQ(found, expected);
}

TEST(Sampler, ParametersAreChecked) {
  const auto refused = [](auto&& set, const char* name) {
    SamplingParams p;
    set(p);
    std::string message;
    EXPECT_EQ(toy::error_of([&] { check(p, 100); }, &message), ErrorKind::invalid_argument);
    EXPECT_NE(message.find(name), std::string::npos) << message;
  };
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {-1.0f, nan, inf}) {
    refused([&](auto& p) { p.temperature = bad; }, "temperature");
    refused([&](auto& p) { p.top_p = bad; }, "top_p");
    refused([&](auto& p) { p.typical_p = bad; }, "typical_p");
    refused([&](auto& p) { p.min_p = bad; }, "min_p");
    refused([&](auto& p) { p.repetition_penalty = bad; }, "repetition_penalty");
  }
  for (const float bad : {0.0f, 1e-45f, 1e30f}) refused([&](auto& p) { p.repetition_penalty = bad; }, "repetition_penalty");
  refused([&](auto& p) { p.temperature = 1e7f; }, "temperature");
  for (const float bad : {1e21f, -3e38f}) refused([&](auto& p) { p.logit_bias = {{1, bad}}; }, "logit_bias");
  refused([&](auto& p) { p.presence_penalty = nan; }, "presence_penalty");
  refused([&](auto& p) { p.frequency_penalty = inf; }, "frequency_penalty");
  refused([&](auto& p) { p.top_k = -1; }, "top_k");
  refused([&](auto& p) { p.logprobs = 101; }, "logprobs");
  refused([&](auto& p) { p.logit_bias = {{100, 1.0f}}; }, "100");
  refused([&](auto& p) { p.logit_bias = {{-1, 1.0f}}; }, "-1");
  refused([&](auto& p) { p.logit_bias = {{1, nan}}; }, "logit_bias");
  refused([&](auto& p) { p.dry_multiplier = -1; }, "dry_multiplier");
  refused([&](auto& p) { p.dry_base = 0.5f; }, "dry_base");
  refused([&](auto& p) { p.dry_allowed_length = 0; }, "dry_allowed_length");
  refused([&](auto& p) { p.dry_breakers = {100}; }, "dry_breakers");
  refused([&](auto& p) { p.dry_breakers = {7, 3}; }, "ascend");
  refused([&](auto& p) { p.top_n_sigma = nan; }, "top_n_sigma");
  refused([&](auto& p) { p.xtc_probability = 1.5f; }, "xtc_probability");
  refused([&](auto& p) { p.xtc_threshold = -0.1f; }, "xtc_threshold");
  refused([&](auto& p) { p.mirostat_tau = 101; }, "mirostat_tau");
  refused([&](auto& p) { p.mirostat_eta = 2; }, "mirostat_eta");
  SamplingParams fine;
  check(fine, 100);
}

// This test is not a benchmark. It fails if the sampler sorts the vocabulary or a loop is no longer vectorised. It records the measured
// processor times.
TEST(Sampler, LargeVocabulariesAreCheap) {
  auto logits = row(262144, 8);
  const auto milliseconds = [&](SamplingParams p, std::span<const std::uint32_t> mask = {}) {
    Sampler sampler;
    Choice choice;
    double best = 1e9;
    for (std::uint64_t i = 0; i < 20; ++i) {
      const patience::Watch watch;
      sampler.choose(p, logits, {}, {0, 0, i}, choice, {.allowed = mask});
      best = std::min(best, 1e3 * watch.thread());
    }
    return best;
  };
  const double greedy = milliseconds({});
  SamplingParams p;
  p.temperature = 1;
  const double temperature = milliseconds(p);
  p.top_k = 50;
  const double top_k = milliseconds(p);
  p.top_k = 0, p.top_p = 0.95f;
  const double top_p = milliseconds(p);
  p.top_p = 1, p.typical_p = 0.9f;
  const double typical = milliseconds(p);
  std::mt19937 random(1);
  std::vector<std::uint32_t> half(mask_words(262144)), few(half.size());
  for (std::uint32_t& word : half) word = static_cast<std::uint32_t>(random());
  for (int i = 0; i < 100; ++i) few[random() % few.size()] = static_cast<std::uint32_t>(random());
  p.typical_p = 1, p.top_k = 50;
  RecordProperty("greedy_few_allowed_ms", std::to_string(milliseconds({}, few)));
  RecordProperty("greedy_half_allowed_ms", std::to_string(milliseconds({}, half)));
  RecordProperty("top_k_few_allowed_ms", std::to_string(milliseconds(p, few)));
  RecordProperty("top_k_half_allowed_ms", std::to_string(milliseconds(p, half)));
  RecordProperty("greedy_ms", std::to_string(greedy));
  RecordProperty("temperature_ms", std::to_string(temperature));
  RecordProperty("top_k_ms", std::to_string(top_k));
  RecordProperty("top_p_ms", std::to_string(top_p));
  RecordProperty("typical_ms", std::to_string(typical));
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(greedy, 0.6);  // ten times as long as on an idle machine
  EXPECT_LT(temperature, 3);
  EXPECT_LT(top_k, 3);
#endif
}

}  // namespace
}  // namespace pumice::engine
