#include "engine/answers.h"

#include <algorithm>
#include <functional>

#include "core/error.h"

namespace pumice::engine {

bool Answers::gather(const Requests& requests) {
  parts_.clear();
  for (const auto& request : requests)
    for (Sequence& s : request->sequences) {
      if (s.ended() || s.answer.empty()) continue;
      s.in_step = Sequence::InStep::yes;
      parts_.push_back({.sequence = &s});
    }
  return !parts_.empty();
}

void Answers::choose() {
  for (Part& part : parts_) {
    try {
      choose(part);
    } catch (const Error& error) {
      const Sequence& s = *part.sequence;
      const std::string what = str("sequence ", s.index, ", position ", s.ids.size(), ": ", error.what());
      part.error = std::make_exception_ptr(Error(error.kind(), what));
    } catch (...) {
      part.error = std::current_exception();
    }
  }
}

void Answers::choose(Part& part) {
  const Sequence& s = *part.sequence;
  logits_ = s.answer;
  mask_ = s.left_by_answer;
  for (const auto& filter : s.filters) {
    if (filter->open()) continue;
    scratch_.resize(mask_words(static_cast<std::int64_t>(logits_.size())));
    filter->mask(scratch_);
    if (mask_.empty()) mask_.resize(scratch_.size(), ~0u);
    std::ranges::transform(mask_, scratch_, mask_.begin(), std::bit_and<>());
  }
  const Draw draw{s.draw.seed, s.draw.stream, static_cast<std::uint64_t>(s.generated())};
  sampler_.choose(s.params->sampling, logits_, s.seen, draw, part.choice, {.allowed = mask_, .ids = s.ids, .mu = s.mu, .raw = s.row});
}

}  // namespace pumice::engine
