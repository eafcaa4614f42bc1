// Tables of the numbers that a call may set, with their names, struct members and ranges. Bindings and checks use the same tables. To add a
// setting, add a member with a default to its struct, and a row to the table in settings.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "engine/sequence.h"

namespace pumice::engine {

struct Range {
  double low, high;
  bool above_low = false;  // if true, `low` itself is not allowed
};

template <class Params>
struct Setting {
  const char* name;
  std::variant<float Params::*, std::int32_t Params::*, std::int64_t Params::*> member;
  Range range;
};

std::span<const Setting<SamplingParams>> sampling_settings();
std::span<const Setting<GenerateParams>> generate_settings();
std::span<const Setting<Speculation>> speculation_settings();

// Returns, of all decimal numbers that round to `value`, the number with the fewest digits. For 0.1f this is 0.1.
double shortest(float value);

bool within(double value, const Range& range);  // returns false for a NaN

// These functions check settings. For a value out of range they throw invalid_argument, with the setting's name, its value and its range.
// `shown` is the text of the value in the message. It is needed only if a double cannot hold all digits of the value.
void check_range(std::string_view name, double value, const Range& range, std::string_view shown = {});
void check_bias(std::int32_t id, double bias);  // checks one entry of logit_bias
void check(const SamplingParams& params, std::int32_t vocab);
void check(const GenerateParams& params, std::int32_t vocab);

}  // namespace pumice::engine
