// Tokens from logits that callers have changed (Request::answer). They are chosen between steps.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "engine/news.h"
#include "engine/sampler.h"

namespace pumice::engine {

class Answers {
 public:
  struct Part {
    Sequence* sequence;
    Choice choice = {};
    std::exception_ptr error = {};  // no token could be chosen
  };

  // Takes the sequences that have an answer; they count as in a step until Roster::step_is_over(). False: there are none.
  bool gather(const Requests& requests);
  // A token for each of them; changes none of them. Needs no lock.
  void choose();
  std::span<const Part> parts() const { return parts_; }

 private:
  void choose(Part& part);

  std::vector<Part> parts_;
  Sampler sampler_;
  std::vector<float> logits_;
  std::vector<std::uint32_t> mask_, scratch_;
};

}  // namespace pumice::engine
