// One step of a model: some rows of many sequences through the body, and a choice for each that reached its last id. Changes no sequence
// (engine/scheduler.cpp does, when all has gone well), so a step that was stopped is simply made again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/cancel.h"
#include "core/error.h"
#include "engine/runtime.h"
#include "engine/sequence.h"

namespace pumice::engine {

class Step {
 public:
  struct Part {
    Sequence* sequence;
    std::int32_t rows;
    bool samples;
    std::size_t first_choice;    // of its followers' too
    std::optional<Error> error;  // no token could be chosen: a NaN, a bias that forbids all
  };

  // One row of each sequence that decodes, then chunks of prompts, first come, first served; no more rows than are given of each.
  void assemble(std::span<Sequence* const> sequences, std::int64_t decode_rows, std::int64_t prompt_rows);
  std::vector<Part>& parts() { return parts_; }
  std::int32_t rows() const { return static_cast<std::int32_t>(ids_.size()); }
  const Choice& choice(std::size_t i) const { return choices_[i]; }

  // Body, heads, choices. False: a device has no memory for so many rows; nothing happened, and the next step has fewer (Runtime::body).
  bool run(Runtime& runtime, const Cancel& cancel);

 private:
  void sample(Runtime& runtime, RunSpace& space, const Cancel& cancel);
  void choose(Runtime& runtime, RunSpace& space, std::span<Part* const> parts, std::span<const float> hidden, bool top,
              const Cancel& cancel);
  void run_top(Runtime& runtime, RunSpace& space, std::span<Part* const> parts, std::span<const float> hidden, std::span<float> rows,
               const Cancel& cancel);

  std::vector<Part> parts_;
  std::vector<Part*> sampling_;
  std::vector<std::int32_t> ids_, selected_, reported_, reported_first_;
  std::vector<Segment> segments_;
  std::vector<float> hidden_, sorted_, logits_;
  std::vector<std::unique_ptr<Sampler>> samplers_;  // per worker of the device
  std::vector<Choice> choices_;
};

}  // namespace pumice::engine
