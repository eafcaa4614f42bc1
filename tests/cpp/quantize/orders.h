// How tests run jobs: in order, or the other way round, as threads might.
#pragma once

#include "quantize/feedback.h"

namespace pumice::quantize {

[[maybe_unused]] static const Parallel kForwards = [](std::int64_t jobs, const std::function<void(std::int64_t)>& job) {
  for (std::int64_t i = 0; i < jobs; ++i) job(i);
};
[[maybe_unused]] static const Parallel kBackwards = [](std::int64_t jobs, const std::function<void(std::int64_t)>& job) {
  for (std::int64_t i = jobs; i > 0; --i) job(i - 1);
};

}  // namespace pumice::quantize
