#include "engine/settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "engine/reasoning_budget.h"

namespace pumice::engine {
namespace {

constexpr double kMost = std::numeric_limits<std::int32_t>::max();

const std::array kSampling = std::to_array<Setting<SamplingParams>>({
    {"temperature", &SamplingParams::temperature, {0, 1e6}},
    {"top_k", &SamplingParams::top_k, {0, kMost}},
    {"typical_p", &SamplingParams::typical_p, {0, 1, true}},
    {"top_p", &SamplingParams::top_p, {0, 1, true}},
    {"min_p", &SamplingParams::min_p, {0, 1}},
    {"repetition_penalty", &SamplingParams::repetition_penalty, {1e-3, 1e3}},
    {"presence_penalty", &SamplingParams::presence_penalty, {-100, 100}},
    {"frequency_penalty", &SamplingParams::frequency_penalty, {-100, 100}},
    {"dry_multiplier", &SamplingParams::dry_multiplier, {0, 100}},
    {"dry_base", &SamplingParams::dry_base, {1, 100}},
    {"dry_allowed_length", &SamplingParams::dry_allowed_length, {1, kMost}},
    {"dry_range", &SamplingParams::dry_range, {0, kMost}},
    {"top_n_sigma", &SamplingParams::top_n_sigma, {0, 1000}},
    {"xtc_probability", &SamplingParams::xtc_probability, {0, 1}},
    {"xtc_threshold", &SamplingParams::xtc_threshold, {0, 1}},
    {"mirostat_tau", &SamplingParams::mirostat_tau, {0, 100}},
    {"mirostat_eta", &SamplingParams::mirostat_eta, {0, 1}},
});

const std::array kGenerate = std::to_array<Setting<GenerateParams>>({
    {"max_new_tokens", &GenerateParams::max_new_tokens, {1, kMost}},
    {"min_new_tokens", &GenerateParams::min_new_tokens, {0, kMost}},
    {"n", &GenerateParams::n, {1, 65536}},
    {"read_ahead", &GenerateParams::read_ahead, {0, kMost}},
    {"priority", &GenerateParams::priority, {-1000, 1000}},
    {"max_seconds", &GenerateParams::max_seconds, {0, 1e9}},
    {"chunk_seconds", &GenerateParams::chunk_seconds, {0, 60}},
});

const std::array kSpeculation = std::to_array<Setting<Speculation>>({
    {"lookup", &Speculation::matching, {0, 32}},
    {"guesses", &Speculation::most, {1, 63}},  // 63 guesses and the row of the last id are kGuessedRows rows
});

// Returns the stream, set to read and write the same digits in every locale, and to throw std::bad_alloc if there is no memory. By default,
// a stream hides this error and reads a 0.
template <class Stream>
Stream&& plain(Stream&& stream) {
  stream.imbue(std::locale::classic());
  stream.exceptions(std::ios::badbit);
  return std::forward<Stream>(stream);
}

// Returns the text with the fewest digits that identify the number. Does not use std::to_chars() and std::from_chars(), because Apple's C++
// library has them for floating-point numbers only from macOS 13.3 on, and wheels must run on macOS 11.
template <class Float>
std::string shortest_text(Float value) {
  for (int digits = std::numeric_limits<Float>::digits10;; ++digits) {
    std::ostringstream out;
    plain(out) << std::setprecision(digits) << value;
    if (digits == std::numeric_limits<Float>::max_digits10) return out.str();
    std::istringstream in(out.str());
    Float read = 0;
    if (plain(in) >> read && read == value) return out.str();
  }
}

// Formats a number for a message. A whole number gets no decimal point.
std::string text(double value) {
  const bool whole = std::fabs(value) < 1e15 && value == std::floor(value);
  return whole ? std::to_string(static_cast<std::int64_t>(value)) : shortest_text(value);
}

template <class Params>
void check_ranges(std::span<const Setting<Params>> settings, const Params& params) {
  for (const Setting<Params>& setting : settings) {
    std::visit(
        [&](auto member) {
          if constexpr (std::is_same_v<decltype(member), float Params::*>) {
            check_range(setting.name, shortest(params.*member), setting.range);
          } else {
            check_range(setting.name, static_cast<double>(params.*member), setting.range);
          }
        },
        setting.member);
  }
}

void check_ids(std::span<const std::int32_t> ids, const char* what, std::int32_t vocab) {
  for (const std::int32_t id : ids) require(id >= 0 && id < vocab, what, ": token id ", id, " is not in the vocabulary of ", vocab);
}

// Checks that no other setting forbids the tokens that end the reasoning. When the reasoning must end, the filter allows only these tokens,
// so no token would be left if another setting forbade them.
void check_reasoning(const GenerateParams& params, std::int32_t vocab) {
  const ReasoningMarks& marks = *params.reasoning;
  const std::span<const std::int32_t> close = marks.close_ids;
  require(marks.tokens != nullptr && marks.open.size() > 0 && marks.close.size() > 0 && !close.empty(), "marks of reasoning are empty");
  require(std::cmp_equal(marks.tokens->size(), vocab), "marks of reasoning have ", marks.tokens->size(), " tokens, not ", vocab);
  check_ids(close, "max_reasoning_tokens", vocab);
  check_ids(marks.again, "max_reasoning_tokens", vocab);
  constexpr std::string_view kNeeds = "max_reasoning_tokens ends the reasoning with token ";
  for (const std::int32_t id : close) {
    require(std::ranges::find(params.eos_ids, id) == params.eos_ids.end(), kNeeds, id, ", which ends this model's whole answer");
    for (const auto& [biased, bias] : params.sampling.logit_bias)
      require(biased != id || std::isfinite(bias), kNeeds, id, ", which logit_bias forbids");
    require(params.min_new_tokens == 0 || std::ranges::find(params.stop_ids, id) == params.stop_ids.end(), kNeeds, id,
            ", which stop and min_new_tokens forbid");
  }
  for (const std::vector<std::int32_t>& word : params.bad_words)
    require(std::ranges::search(close, word).empty(), kNeeds, close.front(), " and what follows it, which bad_words forbid");
}

}  // namespace

std::span<const Setting<SamplingParams>> sampling_settings() { return kSampling; }
std::span<const Setting<GenerateParams>> generate_settings() { return kGenerate; }
std::span<const Setting<Speculation>> speculation_settings() { return kSpeculation; }

double shortest(float value) {
  constexpr float kWholes = 1 << 23;  // whole numbers below this are returned unchanged, because they need all their digits
  if (!std::isfinite(value) || (std::fabs(value) < kWholes && value == std::floor(value))) return value;
  std::istringstream in(shortest_text(value));
  double result = 0;
  plain(in) >> result;
  return result;
}

bool within(double value, const Range& range) { return value <= range.high && (range.above_low ? value > range.low : value >= range.low); }

void check_range(std::string_view name, double value, const Range& range, std::string_view shown) {
  if (within(value, range)) return;
  // kMost is only the largest std::int32_t, so the message omits this limit unless the value is above it.
  const std::string most = range.high == kMost && value <= kMost ? "" : " and at most " + text(range.high);
  fail(ErrorKind::invalid_argument, name, "=", shown.empty() ? text(value) : std::string(shown), " is out of range: it must be ",
       range.above_low ? "more than " : "at least ", text(range.low), most);
}

void check_bias(std::int32_t id, double bias) {
  const double most = shortest(kMostBias);
  require(std::fabs(bias) <= most || bias == -std::numeric_limits<double>::infinity(), "logit_bias[", id, "]=", text(bias),
          " is out of range: it must be at least ", text(-most), " and at most ", text(most), "; -inf forbids the token");
}

void check(const SamplingParams& params, std::int32_t vocab) {
  check_ranges(sampling_settings(), params);
  if (params.logprobs != -1) check_range("logprobs", params.logprobs, {0, static_cast<double>(vocab)});
  for (const auto& [id, bias] : params.logit_bias) {
    check_ids({&id, 1}, "logit_bias", vocab);
    check_bias(id, shortest(bias));
  }
  check_ids(params.dry_breakers, "dry_breakers", vocab);
  require(std::ranges::is_sorted(params.dry_breakers), "dry_breakers do not ascend");
}

void check(const GenerateParams& params, std::int32_t vocab) {
  check(params.sampling, vocab);
  check_ranges(generate_settings(), params);
  check_ranges(speculation_settings(), params.speculation);
  require(params.min_new_tokens <= params.max_new_tokens, "min_new_tokens=", params.min_new_tokens,
          " is more than max_new_tokens=", params.max_new_tokens);
  check_ids(params.eos_ids, "eos_ids", vocab);
  check_ids(params.stop_ids, "stop_ids", vocab);
  for (const std::vector<std::int32_t>& word : params.bad_words) {
    require(!word.empty(), "bad_words holds a word without tokens");
    check_ids(word, "bad_words", vocab);
  }
  if (params.max_reasoning_tokens != -1) check_range("max_reasoning_tokens", static_cast<double>(params.max_reasoning_tokens), {0, kMost});
  if (params.max_reasoning_tokens >= 0 && params.reasoning) check_reasoning(params, vocab);
  for (const auto& filter : params.filters) require(filter != nullptr, "a token filter is null");
}

}  // namespace pumice::engine
