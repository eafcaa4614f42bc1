// Chooses one token id from one row of logits.
//
// The order of the steps is fixed, so that a set of parameters has only one meaning:
//   repetition, presence and frequency penalties -> DRY -> logit_bias -> masks of token filters -> top-n-sigma -> temperature -> top_k
//   -> typical_p -> top_p -> min_p -> XTC -> mirostat -> draw.
// Each filter from top-n-sigma on works on the renormalised distribution that the filter before it has left. Temperature 0 takes the
// largest logit after penalties, bias and masks. Of equal logits, the lowest id counts as the largest, here and in every filter.
// Log-probabilities are the log_softmax of the raw logits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/program.h"
#include "engine/token_counts.h"

namespace pumice::engine {

// The largest absolute value of a bias. A banned id has the logit -1e30, which is so far below -kMostBias that the id's probability is 0
// even at a temperature of 1e6.
inline constexpr float kMostBias = 1e20f;

// How a Sampler chooses tokens. The ranges of the numbers are in engine/settings.cpp.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  std::int32_t top_k = 0;    // 0: off. Fan, Lewis and Dauphin 2018: keeps the top_k likeliest tokens
  // 1: off. Meister et al. 2023: keeps the tokens with surprise nearest the entropy, until their probabilities add up to typical_p.
  float typical_p = 1.0f;
  float top_p = 1.0f;  // 1: off. Holtzman et al. 2020: keeps the likeliest tokens, until their probabilities add up to top_p
  float min_p = 0.0f;  // 0: off. Nguyen et al. 2024: keeps tokens with at least this fraction of the likeliest token's probability
  // 1: off. CTRL, Keskar et al. 2019: the logit x of each id that the prompt or the generated text contains is changed once, to x / penalty
  // if x is positive, else to x * penalty.
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;   // subtracted once from the logit of every generated id
  float frequency_penalty = 0.0f;  // subtracted from the logit of a generated id once for each of its occurrences
  // DRY (p-e-w 2024) lowers the logits of tokens that would continue a repetition. If the last n ids of the text also occur earlier in the
  // text, the logit of the token that followed the earlier occurrence is lowered by dry_multiplier * dry_base^(n - dry_allowed_length). The
  // largest such n counts, if it is at least dry_allowed_length. The matching ids never include a breaker, and the logit of a breaker is
  // never lowered.
  float dry_multiplier = 0.0f;  // 0: off
  float dry_base = 1.75f;
  std::int32_t dry_allowed_length = 2, dry_range = 0;  // dry_range: number of ids at the end of the text that are searched; 0: all ids
  std::vector<std::int32_t> dry_breakers;              // ids, in ascending order
  float top_n_sigma = 0.0f;  // 0: off. Tang et al. 2024: keeps logits within this many standard deviations of the largest
  // XTC (p-e-w 2024), off if xtc_probability is 0. At each draw, with a probability of xtc_probability, all tokens whose own probability is
  // at least xtc_threshold are removed, except the least likely of them.
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  // Mirostat 2 (Basu et al. 2021), off if mirostat_tau is 0. Tokens with a surprise of more than mu bits are removed. mu begins at 2 * tau,
  // and after each token it changes by eta * (tau - surprise of the token), so that the surprise stays near tau.
  float mirostat_tau = 0.0f;
  float mirostat_eta = 0.1f;
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // added to logits; at most kMostBias in absolute value, or -inf to ban an id
  std::optional<std::uint64_t> seed;                       // if empty, the system gives a random seed
  std::int32_t logprobs = -1;  // -1: no log-probabilities; k: log-probabilities of the chosen token and of the k likeliest tokens

  bool greedy() const { return temperature == 0.0f; }
  // Returns true if the k largest logits, and the logits that penalties or a bias change, suffice to choose a token.
  bool needs_only_top(std::int32_t k) const {
    return logprobs < 0 && dry_multiplier == 0.0f && (greedy() || (top_k >= 1 && top_k <= k && top_n_sigma == 0.0f));
  }
  // Returns how many of the largest logits are needed to choose a token, besides the logits that penalties or a bias change. Must be called
  // only if needs_only_top() returns true.
  std::int32_t ranks() const { return greedy() ? 1 : top_k; }
  bool penalises() const { return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f; }
};

struct Choice {
  std::int32_t id = -1;
  float mu = 0;                       // mirostat's mu after this token
  float logprob = 0;                  // log-probability of `id`; not set if SamplingParams::logprobs is -1
  std::vector<std::int32_t> top_ids;  // the likeliest tokens, likeliest first
  std::vector<float> top_logprobs;
  std::vector<float> row;  // the row of logits if GenerateParams::shows_logits is set, so that no id is chosen; otherwise empty
};

// Returns a uniform random number in [0, 1) from Philox4x32-10 (Salmon et al. 2011). The number is a function of the arguments alone, so a
// draw depends neither on which other sequences run nor on whether a step is repeated.
double uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t step);

// Returns the seed of answer number `answer` to a prompt: `seed` for the first one, and for a later one a number below 2^53 (JSON readers
// keep such numbers whole) that is drawn from `seed`. Asked for alone with its seed, an answer is the same again.
std::uint64_t seed_of_answer(std::uint64_t seed, std::uint64_t answer);

// The arguments of uniform() for the random number with which a token is drawn.
struct Draw {
  std::uint64_t seed = 0, stream = 0, step = 0;
};

// The optional inputs of Sampler::choose().
struct Around {
  std::span<const std::uint32_t> allowed = {};  // one bit per id, set if the id is allowed (Batch::allowed); empty: all ids are allowed
  std::span<const std::int32_t> ids = {};       // the text so far, for DRY
  std::optional<float> mu = {};                 // mirostat's mu after the previous token (Choice::mu); empty at the first token
  std::span<const float> raw = {};              // the logits before a caller changed them, for log-probabilities; empty if unchanged
};

// Computes the penalties of DRY. They are pairs of an id and the number to subtract from the logit of the id, in ascending order of ids.
void dry_penalties(const SamplingParams& params, std::span<const std::int32_t> ids, std::vector<std::pair<std::int32_t, float>>& penalties);

// Chooses tokens for any sequence. It holds scratch memory, so each thread needs a Sampler of its own.
class Sampler {
 public:
  // Chooses a token from a whole row of logits. Changes the row, and restores it before returning or throwing. Throws numeric if the row
  // has a NaN or an infinity. Throws invalid_argument if no token is left, because the masks allow no token or because logit_bias bans all
  // tokens that the masks allow.
  void choose(const SamplingParams& params, std::span<float> logits, const TokenCounts& seen, const Draw& draw, Choice& choice,
              const Around& around = {});
  static void check(std::span<const float> logits);  // throws numeric if the row has a NaN or an infinity
  // Computes the log-probabilities of token `id` and of the `count` likeliest tokens from a row of logits. Throws numeric if the row has a
  // NaN or an infinity.
  void score(std::span<const float> logits, std::int32_t id, std::int32_t count, Choice& choice);
  // Chooses the same token as the choose() above, but from `top` in place of the row of logits. `top` is the result of the operation Top
  // for a row of `vocab` logits of which the ids in around.allowed were allowed. `reported` has the ids whose logits Top has reported
  // separately. They must include all ids whose logits penalties or a bias change. Must be called only if needs_only_top(top.k) is true.
  void choose(const SamplingParams& params, const TopRow& top, std::span<const std::int32_t> reported, std::int32_t vocab,
              const TokenCounts& seen, const Draw& draw, Choice& choice, const Around& around = {});

 private:
  struct Candidate {
    // `rank` is the logit. Only within keep_typical(), it is the negative distance between the token's surprise and the entropy. `weight`
    // is the probability before normalisation: exp((logit - max) / temperature).
    float rank, weight;
    float logit;
    std::int32_t id;
  };
  static bool better(const Candidate& a, const Candidate& b) { return a.rank > b.rank || (a.rank == b.rank && a.id < b.id); }

  float penalised(float logit, std::int32_t generated) const;
  static float biased(float logit, float bias);
  void patch(std::span<float> logits, const TokenCounts& seen, std::span<const std::int32_t> ids);
  void gather(const TopRow& top, std::span<const std::int32_t> reported, const TokenCounts& seen);
  using Block = std::array<float, 64>;
  const float* block(std::span<const float> logits, std::int64_t b, Block& pad) const;
  bool is_allowed(std::int32_t id) const;
  std::uint64_t allowed_in(std::int64_t b) const;
  void scan(std::span<const float> logits);
  double weigh(std::span<const float> logits, float scale);
  void collect(std::span<const float> logits, float at_least, float scale);
  void collect_top(std::span<const float> logits, std::size_t count, float scale);
  void keep_best(std::size_t count);
  void keep_mass(double mass);
  void keep_typical(float typical_p, float scale);
  void keep_likely(float min_p);
  void keep_unlikely(const Draw& draw);
  void keep_unsurprising(float mu);
  double deviation(std::span<const float> logits) const;
  double mass() const;
  std::int32_t largest(std::span<const float> logits) const;
  std::int32_t draw_all(std::span<const float> logits, float scale, double u);
  std::int32_t draw(double u) const;
  float scale() const;
  void check_left() const;
  std::int32_t pick(std::span<const float> logits, const Draw& draw);
  std::int32_t filter_and_draw(bool nucleus_done, const Draw& draw);
  void log_probs(std::span<const float> logits, std::int32_t count, Choice& choice);

  const SamplingParams* params_ = nullptr;  // the parameters of the current choice
  std::span<const std::uint32_t> allowed_;  // one bit per id, set if the id is allowed; empty: all ids are allowed
  float mu_ = 0;                            // mirostat's mu, which filter_and_draw() updates
  float max_ = 0;                           // the largest allowed logit of the row
  std::vector<float> block_max_, block_sum_, order_;
  std::vector<Candidate> candidates_, ranked_;  // candidates_ stays in the order of ids; filters sort copies in ranked_
  // patched_ holds the ids whose logits patch() has changed, with their logits before the change. dry_ holds the penalties of DRY.
  std::vector<std::pair<std::int32_t, float>> patched_, dry_;
};

}  // namespace pumice::engine
