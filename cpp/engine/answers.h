// Chooses tokens from logits that callers have changed (Request::answer). This happens between two steps.
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
    std::exception_ptr error = {};  // why no token could be chosen; null if a token was chosen
  };

  // Collects the sequences whose callers have answered, and marks them as being in a step (Sequence::in_step) until Roster::step_is_over()
  // is called. Returns false if no caller has answered.
  bool gather(const Requests& requests);
  // Chooses a token for each collected sequence. Changes no sequence and needs no lock.
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
