#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>

#include "core/error.h"
#include "core/finite.h"

namespace pumice::engine {
namespace {

// Number of logits in a block. The maximum of each block is kept, so that top_k over 262,144 logits has to read only a few blocks again.
constexpr std::int64_t kBlock = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kBanned = -1e30f;     // replaces the logit of an id with a bias of -inf; far below any other logit, but finite
constexpr float kUnderflow = -126.f;  // exp2() returns 0 for any x below this
constexpr float kLog2e = 1.442695041f, kLn2 = 0.6931471806f;

using F4 = float __attribute__((vector_size(16)));
using U4 = std::uint32_t __attribute__((vector_size(16)));

F4 load(const float* from) {
  F4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
F4 all(float value) { return F4{value, value, value, value}; }
F4 larger(F4 a, F4 b) { return a > b ? a : b; }
float sum(F4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }

// Returns 2^x for x <= 0. Let x = n + f with an integer n and |f| <= 1/2. The function computes a polynomial in f, which is fitted to 2^f
// for the least relative error (2e-7 in float), and adds n to the exponent bits of the result.
//
// A token's weight is exp2((logit - max) * scale), where `scale` combines the temperature and the change from base e to base 2.
F4 exp2(F4 x) {
  // Adding 1.5 * 2^23 puts round(x) into the low bits of the sum. The bits above these are lost in the shift by 23 below.
  const F4 shifted = x + 12582912.0f;
  const F4 f = x - (shifted - 12582912.0f);
  F4 power = all(1.327647175e-03f);
  for (const float factor : {9.675541552e-03f, 5.550713276e-02f, 2.402211972e-01f, 6.931469671e-01f, 1.000000072e+00f})
    power = power * f + factor;
  const F4 value = (F4)((U4)power + ((U4)shifted << 23));
  return x < kUnderflow ? all(0.0f) : value;
}

float exp2(float x) { return exp2(all(x))[0]; }

std::int64_t blocks(std::span<const float> row) { return (static_cast<std::int64_t>(row.size()) + kBlock - 1) / kBlock; }

[[noreturn]] void refuse(std::int64_t id, float logit) {
  fail(ErrorKind::numeric, "the logit of token ", id, " is ", name_not_finite(logit), kWhyNotFinite);
}

}  // namespace

// ---------------------------------------------------------------- repetitions
void dry_penalties(const SamplingParams& params, std::span<const std::int32_t> ids,
                   std::vector<std::pair<std::int32_t, float>>& penalties) {
  // The maximum length of a match. The penalty for a longer match could overflow, and the search for it would take quadratic time.
  constexpr std::size_t kLongest = 50;
  penalties.clear();
  const auto breaks = [&](std::int32_t id) { return std::ranges::binary_search(params.dry_breakers, id); };
  const auto range = static_cast<std::size_t>(params.dry_range);
  if (range > 0 && ids.size() > range) ids = ids.last(range);
  if (ids.empty() || breaks(ids.back())) return;
  const std::size_t size = ids.size();
  for (std::size_t i = 0; i + 1 < size; ++i) {  // penalises ids[i + 1] if the text up to ids[i] ends with the same ids as the whole text
    if (ids[i] != ids[size - 1] || breaks(ids[i + 1])) continue;
    std::size_t length = 1;
    while (length < kLongest && length <= i && ids[i - length] == ids[size - 1 - length] && !breaks(ids[i - length])) ++length;
    if (length < static_cast<std::size_t>(params.dry_allowed_length)) continue;
    float penalty = params.dry_multiplier;
    for (std::size_t more = static_cast<std::size_t>(params.dry_allowed_length); more < length; ++more) penalty *= params.dry_base;
    penalties.emplace_back(ids[i + 1], std::min(penalty, kMostBias));
  }
  std::sort(penalties.begin(), penalties.end(),
            [](auto& a, auto& b) { return a.first != b.first ? a.first < b.first : a.second > b.second; });
  const auto same = [](auto& a, auto& b) { return a.first == b.first; };
  penalties.erase(std::unique(penalties.begin(), penalties.end(), same), penalties.end());
}

// ---------------------------------------------------------------- random numbers
namespace {

constexpr std::uint64_t kSeedStream = ~std::uint64_t{0};  // no answer draws from this stream: answers have stream 0 or that of XTC

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t step) {
  std::array<std::uint32_t, 4> c = {static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32),
                                    static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0], b = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1,
         static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return std::uint64_t{c[0]} << 32 | c[1];
}

}  // namespace

double uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t step) {
  return static_cast<double>(random_bits(seed, stream, step) >> 11) * 0x1p-53;
}

std::uint64_t seed_of_answer(std::uint64_t seed, std::uint64_t answer) {
  return answer == 0 ? seed : random_bits(seed, kSeedStream, answer) >> 11;
}

// ---------------------------------------------------------------- penalties and bias
float Sampler::penalised(float logit, std::int32_t generated) const {
  logit = logit > 0 ? logit / params_->repetition_penalty : logit * params_->repetition_penalty;
  if (generated > 0) logit -= params_->presence_penalty + static_cast<float>(generated) * params_->frequency_penalty;
  return logit;
}

float Sampler::biased(float logit, float bias) { return bias == -kInfinity && std::isfinite(logit) ? kBanned : logit + bias; }

// ---------------------------------------------------------------- what is allowed
bool Sampler::is_allowed(std::int32_t id) const {
  return allowed_.empty() || (allowed_[static_cast<std::size_t>(id / 32)] >> (id % 32) & 1u) != 0;
}

// Returns the mask of block b, with one bit for each logit.
std::uint64_t Sampler::allowed_in(std::int64_t b) const {
  if (allowed_.empty()) return ~std::uint64_t{0};
  const auto word = static_cast<std::size_t>(2 * b);
  return allowed_[word] | std::uint64_t{word + 1 < allowed_.size() ? allowed_[word + 1] : 0u} << 32;
}

// Returns block b of a row. Logits of ids that are not allowed are replaced by -inf, and a short last block is filled up with -inf. If all
// 64 ids of the block are allowed, the result points into the row, otherwise to a copy in `pad`.
const float* Sampler::block(std::span<const float> logits, std::int64_t b, Block& pad) const {
  const std::int64_t first = b * kBlock, count = std::min(kBlock, static_cast<std::int64_t>(logits.size()) - first);
  const std::uint64_t here = allowed_in(b);
  const float* x = logits.data() + first;
  if (count == kBlock && here == ~std::uint64_t{0}) return x;
  if (count < kBlock) {
    pad.fill(-kInfinity);
    std::copy_n(x, count, pad.begin());
    x = pad.data();
  }
  const U4 lanes{1, 2, 4, 8};
  for (std::int64_t i = 0; i < kBlock; i += 4) {
    const U4 bits = (U4{} + static_cast<std::uint32_t>(here >> i & 15)) & lanes;
    const F4 value = bits != 0 ? load(x + i) : all(-kInfinity);
    std::memcpy(&pad[static_cast<std::size_t>(i)], &value, sizeof value);
  }
  return pad.data();
}

// ---------------------------------------------------------------- passes over the row
void Sampler::patch(std::span<float> logits, const TokenCounts& seen, std::span<const std::int32_t> ids) {
  patched_.clear();
  const auto set = [&](std::int32_t id, float value) {
    patched_.emplace_back(id, logits[id]);
    logits[id] = value;
  };
  if (params_->penalises()) {
    seen.each([&](std::int32_t id, std::int32_t generated) { set(id, penalised(logits[id], generated)); });
  }
  if (params_->dry_multiplier > 0) {
    dry_penalties(*params_, ids, dry_);
    // A prompt may contain ids without a logit, because a head may have fewer rows than the embedding.
    for (const auto& [id, penalty] : dry_)
      if (id < static_cast<std::int64_t>(logits.size())) set(id, logits[id] - penalty);
  }
  for (const auto& [id, bias] : params_->logit_bias) set(id, biased(logits[id], bias));
}

void Sampler::check(std::span<const float> logits) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  if (bad != logits.end()) refuse(bad - logits.begin(), *bad);
}

// Computes the maximum of the allowed logits of each block and of the whole row. Throws if any logit, allowed or not, is not finite. To
// check this, computes x - x, which is 0 if x is finite, and NaN otherwise.
void Sampler::scan(std::span<const float> logits) {
  const std::int64_t count = blocks(logits), whole = static_cast<std::int64_t>(logits.size()) / kBlock;
  block_max_.resize(count);
  Block pad;
  F4 check = all(0.0f), check2 = check;
  const auto largest = [](F4 m0, F4 m1, F4 m2, F4 m3) {
    const F4 m = larger(larger(m0, m1), larger(m2, m3));
    return std::max(std::max(m[0], m[1]), std::max(m[2], m[3]));
  };
  for (std::int64_t b = 0; b < whole; ++b) {
    const float* x = logits.data() + b * kBlock;
    F4 m0 = load(x), m1 = load(x + 4), m2 = load(x + 8), m3 = load(x + 12);
    check += (m0 - m0) + (m1 - m1);
    check2 += (m2 - m2) + (m3 - m3);
    for (std::int64_t i = 16; i < kBlock; i += 16) {
      const F4 x0 = load(x + i), x1 = load(x + i + 4), x2 = load(x + i + 8), x3 = load(x + i + 12);
      check += (x0 - x0) + (x1 - x1);
      check2 += (x2 - x2) + (x3 - x3);
      m0 = larger(x0, m0), m1 = larger(x1, m1), m2 = larger(x2, m2), m3 = larger(x3, m3);
    }
    block_max_[b] = largest(m0, m1, m2, m3);
  }
  for (std::int64_t i = whole * kBlock; i < static_cast<std::int64_t>(logits.size()); ++i) check[0] += logits[i] - logits[i];
  if (sum(check + check2) != 0.0f) {
    Sampler::check(logits);
  }
  // Recomputes the maxima of blocks with ids that are not allowed, and of a short last block.
  for (std::int64_t b = allowed_.empty() ? whole : 0; b < count; ++b) {
    const std::uint64_t here = allowed_in(b);
    if (b < whole && here == ~std::uint64_t{0}) continue;
    block_max_[b] = -kInfinity;
    if (here == 0) continue;
    const float* x = block(logits, b, pad);
    for (std::int64_t i = 0; i < kBlock; i += 16)
      block_max_[b] = std::max(block_max_[b], largest(load(x + i), load(x + i + 4), load(x + i + 8), load(x + i + 12)));
  }
  max_ = *std::max_element(block_max_.begin(), block_max_.end());
}

// Computes the sum of weights in each block, and returns the sum over all blocks.
double Sampler::weigh(std::span<const float> logits, float scale) {
  const std::int64_t count = blocks(logits);
  block_sum_.resize(count);
  Block pad;
  double total = 0;
  for (std::int64_t b = 0; b < count; ++b) {
    block_sum_[b] = 0;
    if ((block_max_[b] - max_) * scale < kUnderflow) continue;
    const float* x = block(logits, b, pad);
    F4 s0 = all(0.0f), s1 = s0;
    for (std::int64_t i = 0; i < kBlock; i += 8) {
      s0 += exp2((load(x + i) - max_) * scale);
      s1 += exp2((load(x + i + 4) - max_) * scale);
    }
    block_sum_[b] = sum(s0 + s1);
    total += block_sum_[b];
  }
  return total;
}

// Makes all tokens with a logit of at least `at_least` the candidates, in the order of ids.
void Sampler::collect(std::span<const float> logits, float at_least, float scale) {
  candidates_.clear();
  const std::int64_t count = blocks(logits), size = static_cast<std::int64_t>(logits.size());
  Block pad, weights;
  for (std::int64_t b = 0; b < count; ++b) {
    if (!(block_max_[b] >= at_least)) continue;
    const float* x = block(logits, b, pad);
    for (std::int64_t i = 0; i < kBlock; i += 4) {
      const F4 weight = exp2((load(x + i) - max_) * scale);
      std::memcpy(&weights[i], &weight, sizeof weight);
    }
    for (std::int64_t i = 0, end = std::min(kBlock, size - b * kBlock); i < end; ++i)
      if (x[i] >= at_least) candidates_.push_back({x[i], weights[i], x[i], static_cast<std::int32_t>(b * kBlock + i)});
  }
}

// Makes the tokens with the `count` largest logits the candidates. Let m be the count-th largest of the blocks' maxima. Then `count` blocks
// have a logit of at least m, so no logit below m can be among the `count` largest.
void Sampler::collect_top(std::span<const float> logits, std::size_t count, float scale) {
  float at_least = -kLargest;  // excludes ids that are not allowed, because their logits are -inf
  if (count <= block_max_.size()) {
    order_ = block_max_;
    std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count) - 1, order_.end(), std::greater<float>());
    at_least = std::max(at_least, order_[count - 1]);
  }
  collect(logits, at_least, scale);
  keep_best(count);
}

void Sampler::keep_best(std::size_t count) {
  if (candidates_.size() <= count) return;
  ranked_ = candidates_;
  std::nth_element(ranked_.begin(), ranked_.begin() + static_cast<std::ptrdiff_t>(count) - 1, ranked_.end(), better);
  const Candidate last = ranked_[count - 1];
  std::erase_if(candidates_, [&](const Candidate& c) { return better(last, c); });
}

// Keeps the best candidates, only as many as needed for a total weight of at least `mass`. Does not sort all candidates. Instead, a
// histogram over ranks shows in which bin the sum of weights reaches `mass`, and repeated halving finds the last kept candidate in that
// bin.
void Sampler::keep_mass(double mass) {
  constexpr int kBins = 1024;
  const auto [least, most] = std::minmax_element(candidates_.begin(), candidates_.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
  const double top = most->rank, per_bin = (kBins - 1) / std::max(top - least->rank, 1e-30);
  const auto bin = [&](const Candidate& c) { return static_cast<int>((top - c.rank) * per_bin); };
  std::array<double, kBins> weights{};
  for (const Candidate& c : candidates_) weights[bin(c)] += c.weight;
  double above = 0;  // sum of the weights of the candidates in better bins, and later also of the candidates before `low`
  int reached = 0;
  while (reached < kBins - 1 && above + weights[reached] < mass) above += weights[reached++];
  while (reached > 0 && weights[reached] == 0) above -= weights[--reached];  // goes back if rounding errors led past the last used bin
  ranked_.clear();
  std::copy_if(candidates_.begin(), candidates_.end(), std::back_inserter(ranked_), [&](const Candidate& c) { return bin(c) == reached; });
  auto low = ranked_.begin(), high = ranked_.end();
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, better);
    double half = 0;
    for (auto c = low; c != middle; ++c) half += c->weight;
    if (above + half >= mass) {
      high = middle;
    } else {
      above += half;
      low = middle;
    }
  }
  const Candidate last = *low;
  std::erase_if(candidates_, [&](const Candidate& c) { return better(last, c); });
}

// Applies typical sampling. Ranks candidates by how near their surprise is to the entropy, and keeps the best candidates that have
// `typical_p` of the mass. The kept candidates are then ranked by logit again.
void Sampler::keep_typical(float typical_p, float scale) {
  double total = 0, weighted = 0;
  for (const Candidate& c : candidates_) {
    total += c.weight;
    weighted += static_cast<double>(c.weight) * ((c.rank - max_) * scale);
  }
  // With z = (logit - max) * scale, a token's surprise is log2(total) - z, and the entropy is log2(total) - mean. They differ by z - mean.
  const double mean = weighted / total;
  for (Candidate& c : candidates_) c.rank = -static_cast<float>(std::fabs((c.rank - max_) * scale - mean));
  keep_mass(typical_p * total);
  for (Candidate& c : candidates_) c.rank = c.logit;
}

void Sampler::keep_likely(float min_p) {
  float heaviest = 0;
  for (const Candidate& c : candidates_) heaviest = std::max(heaviest, c.weight);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < min_p * heaviest; });
}

// Applies XTC: with a probability of xtc_probability, removes all candidates above the threshold except the least likely of them.
void Sampler::keep_unlikely(const Draw& draw) {
  // XTC takes its random number from a stream of its own, so that this number is independent of the number that draws the token.
  constexpr std::uint64_t kOtherStream = 0x5854430000000000u;
  if (uniform(draw.seed, draw.stream ^ kOtherStream, draw.step) >= static_cast<double>(params_->xtc_probability)) return;
  const double least = params_->xtc_threshold * mass();
  const Candidate* last = nullptr;
  for (const Candidate& c : candidates_)
    if (c.weight >= least && (!last || better(*last, c))) last = &c;
  if (!last) return;
  const Candidate kept = *last;
  std::erase_if(candidates_, [&](const Candidate& c) { return better(c, kept); });
}

// Removes the candidates whose surprise is more than mu bits, that is, whose probability is below 2^-mu. The likeliest candidate stays.
void Sampler::keep_unsurprising(float mu) {
  const double least = std::exp2(-static_cast<double>(mu)) * mass();
  const Candidate best = *std::min_element(candidates_.begin(), candidates_.end(), better);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < least && c.id != best.id; });
}

// Returns the standard deviation of all logits that are allowed and not banned by a bias.
double Sampler::deviation(std::span<const float> logits) const {
  Block pad;
  double sums[2] = {0, 0};
  std::int64_t count = 0;
  for (const bool squares : {false, true}) {
    const double mean = squares ? sums[0] / static_cast<double>(count) : 0;
    for (std::int64_t b = 0; b < blocks(logits); ++b) {
      if (!(block_max_[b] > kBanned)) continue;
      const float* x = block(logits, b, pad);
      double here = 0;
      for (std::int64_t i = 0; i < std::min(kBlock, static_cast<std::int64_t>(logits.size()) - b * kBlock); ++i) {
        if (!(x[i] > kBanned)) continue;
        here += squares ? (x[i] - mean) * (x[i] - mean) : x[i];
        count += !squares;
      }
      sums[squares] += here;
    }
  }
  return std::sqrt(sums[1] / static_cast<double>(count));
}

double Sampler::mass() const {
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  return total;
}

// ---------------------------------------------------------------- the choice
std::int32_t Sampler::largest(std::span<const float> logits) const {
  const auto b = std::find(block_max_.begin(), block_max_.end(), max_) - block_max_.begin();
  Block pad;
  const float* x = block(logits, b, pad);
  return static_cast<std::int32_t>(b * kBlock + (std::find(x, x + kBlock, max_) - x));
}

std::int32_t Sampler::draw_all(std::span<const float> logits, float scale, double u) {
  const double target = u * weigh(logits, scale);
  double below = 0;
  std::int64_t chosen = -1;
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(block_sum_.size()); ++b) {
    if (block_sum_[b] == 0) continue;
    chosen = b;
    if (below + block_sum_[b] > target) break;
    below += block_sum_[b];
  }
  Block pad;
  const float* x = block(logits, chosen, pad);
  std::int64_t id = -1;
  for (std::int64_t i = 0; i < kBlock; ++i) {
    const float weight = exp2((x[i] - max_) * scale);
    if (weight == 0) continue;
    id = chosen * kBlock + i;  // last token so far with a positive weight; it is chosen if rounding errors leave `target` above the sum
    below += weight;
    if (below > target) break;
  }
  return static_cast<std::int32_t>(id);
}

std::int32_t Sampler::draw(double u) const {
  const double target = u * mass();
  double below = 0;
  std::int32_t id = -1;
  for (const Candidate& c : candidates_) {
    if (c.weight == 0) continue;
    id = c.id;
    below += c.weight;
    if (below > target) break;
  }
  return id;
}

float Sampler::scale() const { return std::min(kLog2e / params_->temperature, kLargest); }

std::int32_t Sampler::pick(std::span<const float> logits, const Draw& draw) {
  scan(logits);
  check_left();
  if (params_->greedy() || params_->top_k == 1) return largest(logits);
  const float scale = this->scale();
  const bool top_k = params_->top_k > 0 && static_cast<std::size_t>(params_->top_k) < logits.size();
  const bool typical = params_->typical_p < 1.0f, top_p = params_->top_p < 1.0f;
  const bool sigma = params_->top_n_sigma > 0.0f, ranked = params_->xtc_probability > 0.0f || params_->mirostat_tau > 0.0f;
  if (!top_k && !typical && !top_p && !sigma && !ranked && params_->min_p == 0.0f)
    return draw_all(logits, scale, uniform(draw.seed, draw.stream, draw.step));

  const auto logit_at = [&](float z) { return max_ + z * kLn2 * params_->temperature; };  // returns the logit whose weight is 2^z
  bool nucleus_done = false;
  if (sigma) {
    collect(logits, std::max(-kLargest, static_cast<float>(max_ - params_->top_n_sigma * deviation(logits))), scale);
    if (top_k) keep_best(static_cast<std::size_t>(params_->top_k));
  } else if (top_k) {
    collect_top(logits, static_cast<std::size_t>(params_->top_k), scale);
  } else if (typical || (!top_p && params_->min_p == 0.0f)) {
    collect(logits, logit_at(kUnderflow), scale);
  } else if (top_p) {  // first tries only tokens with at least 2^-6 of the largest weight, which nearly always have enough mass
    const double wanted = params_->top_p * weigh(logits, scale);
    for (float z = -6.0f;; z *= 2.0f) {
      collect(logits, logit_at(std::max(z, kUnderflow)), scale);
      if (z <= kUnderflow || mass() >= wanted) break;
    }
    keep_mass(wanted);
    nucleus_done = true;
  } else {
    collect(logits, logit_at(std::max(std::log2(params_->min_p) - 1e-3f, kUnderflow)), scale);
  }
  return filter_and_draw(nucleus_done, draw);
}

// Applies the filters that come after top_k, and draws a token. If `nucleus_done` is true, top_p has been applied already. The candidates
// must be in the order of ids.
std::int32_t Sampler::filter_and_draw(bool nucleus_done, const Draw& draw) {
  if (params_->typical_p < 1.0f) keep_typical(params_->typical_p, scale());
  if (params_->top_p < 1.0f && !nucleus_done) keep_mass(params_->top_p * mass());
  if (params_->min_p > 0.0f) keep_likely(params_->min_p);
  if (params_->xtc_probability > 0.0f) keep_unlikely(draw);
  const double u = uniform(draw.seed, draw.stream, draw.step);
  if (params_->mirostat_tau == 0.0f) return this->draw(u);
  keep_unsurprising(mu_);
  const std::int32_t id = this->draw(u);
  const auto chosen = std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) { return c.id == id; });
  const double surprise = std::log2(mass() / chosen->weight);
  mu_ -= params_->mirostat_eta * static_cast<float>(surprise - params_->mirostat_tau);
  return id;
}

void Sampler::check_left() const {
  require(max_ > -kInfinity, "nothing that the token filters allow is left to draw: they contradict each other or forbid all there is");
  require(max_ > kBanned || params_->logit_bias.empty(), "logit_bias forbids every token: there is nothing left to draw");
}

void Sampler::score(std::span<const float> logits, std::int32_t id, std::int32_t count, Choice& choice) {
  allowed_ = {};
  choice.id = id;
  log_probs(logits, count, choice);
}

// Computes the log-probabilities of choice.id and of the `count` likeliest tokens.
void Sampler::log_probs(std::span<const float> logits, std::int32_t count, Choice& choice) {
  scan(logits);
  const double log_total = std::log(weigh(logits, kLog2e));
  const auto log_prob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - max_ - log_total); };
  choice.logprob = log_prob(logits[choice.id]);
  choice.top_ids.clear();
  choice.top_logprobs.clear();
  if (count == 0) return;
  collect_top(logits, static_cast<std::size_t>(count), kLog2e);
  std::sort(candidates_.begin(), candidates_.end(), better);
  for (const Candidate& c : candidates_) {
    choice.top_ids.push_back(c.id);
    choice.top_logprobs.push_back(log_prob(c.rank));
  }
}

// ---------------------------------------------------------------- from a device's ranking
// Makes candidates of the reported ids and of the ids that Top has ranked, except ids that are not allowed. Logits of reported ids get
// their penalties and bias, as in patch(). max_ becomes the largest logit of the candidates, which is also the largest allowed logit of the
// whole row.
void Sampler::gather(const TopRow& top, std::span<const std::int32_t> reported, const TokenCounts& seen) {
  candidates_.clear();
  const auto add = [&](float logit, std::int32_t id) { candidates_.push_back({logit, 0.0f, logit, id}); };
  for (std::size_t i = 0; i < reported.size(); ++i) {
    const auto generated = params_->penalises() ? seen.generated(reported[i]) : std::nullopt;
    const float logit = top.reported(static_cast<std::int32_t>(i));
    add(generated ? penalised(logit, *generated) : logit, reported[i]);
  }
  for (const auto& [id, bias] : params_->logit_bias) {
    const auto at = std::lower_bound(reported.begin(), reported.end(), id);
    require(at != reported.end() && *at == id, "the logit of token ", id, " has a bias, and is not among those that were left out");
    Candidate& c = candidates_[static_cast<std::size_t>(at - reported.begin())];
    c.rank = c.logit = biased(c.logit, bias);
  }
  std::int32_t bad = top.first_not_finite();
  float value = top.value_not_finite();
  for (const Candidate& c : candidates_) {
    if (std::isfinite(c.logit) || (bad >= 0 && c.id > bad)) continue;
    bad = c.id;
    value = c.logit;
    break;
  }
  if (bad >= 0) refuse(bad, value);
  if (!allowed_.empty()) std::erase_if(candidates_, [&](const Candidate& c) { return !is_allowed(c.id); });
  for (std::int32_t i = 0; i < top.count(); ++i) add(top.logit(i), top.id(i));
  require(!candidates_.empty() || !allowed_.empty(), "there are no logits to choose from");
  max_ = -kInfinity;
  for (const Candidate& c : candidates_) max_ = std::max(max_, c.logit);
}

void Sampler::choose(const SamplingParams& params, const TopRow& top, std::span<const std::int32_t> reported, std::int32_t vocab,
                     const TokenCounts& seen, const Draw& draw, Choice& choice, const Around& around) {
  params_ = &params;
  allowed_ = around.allowed;
  mu_ = around.mu.value_or(2 * params.mirostat_tau);
  require(params_->needs_only_top(std::min(top.k, vocab - 1)), "these sampling parameters need the whole row of logits");
  gather(top, reported, seen);
  check_left();
  choice.mu = mu_;
  if (params_->greedy() || params_->top_k == 1) {
    choice.id = std::min_element(candidates_.begin(), candidates_.end(), better)->id;
    return;
  }
  keep_best(static_cast<std::size_t>(params_->top_k));
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const float scale = this->scale();
  for (Candidate& c : candidates_) c.weight = exp2((c.logit - max_) * scale);
  choice.id = filter_and_draw(false, draw);
  choice.mu = mu_;
}

void Sampler::choose(const SamplingParams& params, std::span<float> logits, const TokenCounts& seen, const Draw& draw, Choice& choice,
                     const Around& around) {
  params_ = &params;
  require(!logits.empty(), "there are no logits to choose from");
  allowed_ = around.allowed;
  require(allowed_.empty() || allowed_.size() == mask_words(static_cast<std::int64_t>(logits.size())), "a mask of ", allowed_.size(),
          " words for ", logits.size(), " logits");
  mu_ = around.mu.value_or(2 * params.mirostat_tau);
  struct Restore {
    Sampler& sampler;
    std::span<float> logits;
    ~Restore() {
      for (auto p = sampler.patched_.rbegin(); p != sampler.patched_.rend(); ++p) logits[p->first] = p->second;
    }
  };
  {
    const Restore restore{*this, logits};
    patch(logits, seen, around.ids);
    choice.id = pick(logits, draw);
    choice.mu = mu_;
  }
  allowed_ = {};  // allows all ids, because log-probabilities are computed over the whole row
  if (params_->logprobs >= 0) log_probs(around.raw.empty() ? logits : around.raw, params_->logprobs, choice);
}

}  // namespace pumice::engine
