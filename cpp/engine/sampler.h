// From one row of logits to one token id.
//
// The order is fixed, for one set of parameters has one meaning:
//   repetition, presence and frequency penalties -> DRY -> logit_bias -> what is allowed -> top-n-sigma -> temperature -> top_k
//   -> typical_p -> top_p -> min_p -> XTC -> mirostat -> draw.
// Each filter sees the distribution that the one before left, renormalised. Temperature 0 takes the largest logit after penalties and
// bias; ties go to the lowest id, here and in every filter. Log-probabilities are those of the raw logits: log_softmax(row).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/program.h"

namespace pumice::engine {

inline constexpr float kMostBias = 1e20f;  // no sum of it comes near the logit of a banned id, also at a temperature of 1e6

// Ranges: engine/settings.cpp.
struct SamplingParams {
  float temperature = 0.0f;         // 0: greedy
  std::int32_t top_k = 0;           // 0: off. Fan, Lewis and Dauphin 2018
  float typical_p = 1.0f;           // 1: off. Meister et al. 2023: tokens nearest the entropy, until this much mass
  float top_p = 1.0f;               // 1: off. Holtzman et al. 2020: the likeliest tokens, until this much mass
  float min_p = 0.0f;               // 0: off. Nguyen et al. 2024: at least this share of the likeliest token's probability
  float repetition_penalty = 1.0f;  // 1: off. CTRL, Keskar et al. 2019: over prompt and generated ids, once per id, x / p or x * p
  float presence_penalty = 0.0f;    // subtracted once from every generated id
  float frequency_penalty = 0.0f;   // subtracted once per occurrence among the generated ids
  // Tokens that would go on with a repetition (DRY, p-e-w 2024): where the text's last n ids stand earlier too, what came after them there
  // loses multiplier * base^(n - allowed length), for the longest such n from the allowed length on. No repetition reaches over a breaker.
  float dry_multiplier = 0.0f;  // 0: off
  float dry_base = 1.75f;
  std::int32_t dry_allowed_length = 2, dry_range = 0;  // dry_range: the last ids that are looked at; 0: all
  std::vector<std::int32_t> dry_breakers;              // ascending
  float top_n_sigma = 0.0f;                            // 0: off. Tang et al. 2024: logits within so many standard deviations of the largest
  float xtc_probability = 0.0f;  // 0: off. XTC, p-e-w 2024: so often, all tokens of at least the threshold's probability but the least
  float xtc_threshold = 0.1f;    // likely of them are left out
  float mirostat_tau = 0.0f;     // 0: off. Mirostat 2, Basu et al. 2021: no token of more surprise than mu bits, which follows the
  float mirostat_eta = 0.1f;     // tokens' surprise towards tau, at this rate
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // added, at most 1e20; -inf bans an id
  std::optional<std::uint64_t> seed;                       // none: one is drawn from the system
  std::int32_t logprobs = -1;                              // -1: none; k: the chosen token's and the k likeliest

  bool greedy() const { return temperature == 0.0f; }
  // Whether the k largest unchanged logits and all changed ones are enough to choose as from the whole row.
  bool needs_only_top(std::int32_t k) const {
    return logprobs < 0 && dry_multiplier == 0.0f && (greedy() || (top_k >= 1 && top_k <= k && top_n_sigma == 0.0f));
  }
  bool penalises() const { return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f; }
};

// Ids that a sequence has seen, and how often it generated each. Open addressing: a step allocates nothing unless the table doubles.
class TokenCounts {
 public:
  void add(std::int32_t id, bool generated);
  std::optional<std::int32_t> generated(std::int32_t id) const;  // none: never seen
  template <class Visit>
  void each(Visit&& visit) const {
    for (const Entry& entry : table_)
      if (entry.id >= 0) visit(entry.id, entry.generated);
  }

 private:
  struct Entry {
    std::int32_t id = -1, generated = 0;
  };
  std::size_t place(std::int32_t id) const;
  std::vector<Entry> table_;  // a power of two, at most half full
  std::size_t used_ = 0;
};

struct Choice {
  std::int32_t id = -1;
  float mu = 0;                       // mirostat's mu after this token
  float logprob = 0;                  // where logprobs are asked for
  std::vector<std::int32_t> top_ids;  // likeliest first
  std::vector<float> top_logprobs;
  std::vector<float> row;  // with GenerateParams::shows_logits, in place of a choice: the logits
};

// A uniform number in [0, 1) from Philox4x32-10 (Salmon et al. 2011): a function of its arguments alone, so that a draw does not depend
// on which other sequences run, or on a step being done twice.
double uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t step);

// Which random number a token is drawn with.
struct Draw {
  std::uint64_t seed = 0, stream = 0, step = 0;
};

// Inputs of a choice besides its row of logits.
struct Around {
  std::span<const std::uint32_t> allowed = {};  // a bit for each id (Batch::allowed); empty: all
  std::span<const std::int32_t> ids = {};       // the text so far, for DRY
  std::optional<float> mu = {};                 // mirostat's (Choice::mu); none: at the beginning
  std::span<const float> raw = {};              // the row for log-probabilities, where a caller has changed this one
};

// DRY: what is subtracted from the logits of ids, ascending by id.
void dry_penalties(const SamplingParams& params, std::span<const std::int32_t> ids, std::vector<std::pair<std::int32_t, float>>& penalties);

// Ids whose logits penalties and bias change, ascending: a device leaves them out of its ranking (Top), for it has the raw logits only.
class ChangedIds {
 public:
  explicit ChangedIds(std::size_t most = 0) : most_(most) {}
  void add(std::int32_t id);
  bool fit() const { return ids_.size() <= most_; }  // false: there are more than `most`, and the list is not complete
  std::span<const std::int32_t> ids() const { return ids_; }

 private:
  std::size_t most_;
  std::vector<std::int32_t> ids_;
};

// One thread's scratch for choices, of any sequence. The row is changed while choose() works and left as it was.
class Sampler {
 public:
  // Throws numeric when the row holds a NaN or an infinity, invalid_argument when nothing is left: logit_bias forbids all that is allowed,
  // or nothing is.
  void choose(const SamplingParams& params, std::span<float> logits, const TokenCounts& seen, const Draw& draw, Choice& choice,
              const Around& around = {});
  static void check(std::span<const float> logits);  // throws numeric
  // The same choice, to the bit, from what Top gives of a row of `vocab` logits, with the same ids allowed. `reported`: the ids that it
  // left out, with all that `seen` and the bias change among them. Only where SamplingParams::needs_only_top(top.k).
  void choose(const SamplingParams& params, const TopRow& top, std::span<const std::int32_t> reported, std::int32_t vocab,
              const TokenCounts& seen, const Draw& draw, Choice& choice, const Around& around = {});

 private:
  struct Candidate {
    float rank, weight;  // rank: the logit, or how typical; weight: exp((logit - max) / temperature) = 2^((logit - max) * scale)
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
  void log_probs(std::span<const float> logits, Choice& choice);

  const SamplingParams* params_ = nullptr;  // those of the current choice
  std::span<const std::uint32_t> allowed_;  // what the current pass allows; empty: all
  float mu_ = 0;                            // mirostat's mu: before the draw, then after it
  float max_ = 0;
  std::vector<float> block_max_, block_sum_, order_;
  std::vector<Candidate> candidates_, ranked_;                 // candidates stay in the order of ids
  std::vector<std::pair<std::int32_t, float>> patched_, dry_;  // id, value before; id, what it loses
};

}  // namespace pumice::engine
