#include "engine/pipeline.h"

#include <algorithm>

#include "core/error.h"

namespace pumice::engine {

std::uint64_t CacheSet::page_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& store : stores_) bytes += store->page_bytes();
  return bytes;
}

void CacheSet::read_pages(std::span<const std::int32_t> pages, std::span<std::uint8_t> out) {
  const std::uint64_t stride = page_bytes();
  require(out.size() == pages.size() * stride, "cache: ", pages.size(), " pages of ", stride, " bytes do not go into ", out.size());
  for (std::uint64_t at = 0; const auto& store : stores_) {
    store->read_pages(pages, out.data() + at, stride);
    at += store->page_bytes();
  }
}

void CacheSet::write_pages(std::span<const std::int32_t> pages, std::span<const std::uint8_t> in) {
  const std::uint64_t stride = page_bytes();
  require(in.size() == pages.size() * stride, "cache: ", in.size(), " bytes are not ", pages.size(), " pages of ", stride);
  for (std::uint64_t at = 0; const auto& store : stores_) {
    store->write_pages(pages, in.data() + at, stride);
    at += store->page_bytes();
  }
}

std::uint64_t CacheSet::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& store : stores_) bytes += store->state_bytes();
  return bytes;
}

void CacheSet::read_state(std::int32_t state, std::span<std::uint8_t> out) {
  require(out.size() == state_bytes(), "cache: a state of ", state_bytes(), " bytes does not go into ", out.size());
  for (std::uint64_t at = 0; const auto& store : stores_) {
    if (store->state_bytes() > 0) store->read_state(state, out.data() + at);
    at += store->state_bytes();
  }
}

void CacheSet::write_state(std::int32_t state, std::span<const std::uint8_t> in) {
  require(in.size() == state_bytes(), "cache: ", in.size(), " bytes are not a state of ", state_bytes());
  for (std::uint64_t at = 0; const auto& store : stores_) {
    if (store->state_bytes() > 0) store->write_state(state, in.data() + at);
    at += store->state_bytes();
  }
}

Pipeline::Pipeline(std::vector<std::shared_ptr<Backend>> backends, std::vector<Stage> body, Stage head, Stage log_probs, Stage top)
    : Pipeline(std::move(backends), std::move(body), std::move(head), std::move(log_probs), std::move(top), Draft()) {}

Pipeline::Pipeline(std::vector<std::shared_ptr<Backend>> backends, std::vector<Stage> body, Stage head, Stage log_probs, Stage top,
                   Draft draft)
    : backends_(std::move(backends)),
      body_(std::move(body)),
      head_(std::move(head)),
      log_probs_(std::move(log_probs)),
      top_(std::move(top)),
      draft_(std::move(draft)) {
  hidden_size_ = body_.back().output_width;
  vocab_size_ = head_.executable ? head_.output_width : 0;
  for (const auto& backend : backends_) {
    batch_rows_ = std::max(batch_rows_, backend->batch_rows());
    if (!narrowest_ || backend->workers() < narrowest_->workers()) narrowest_ = backend.get();
    if (!widest_ || backend->workers() > widest_->workers()) widest_ = backend.get();
  }
}

std::unique_ptr<RunSpace> Pipeline::make_space(Crew crew) const {
  auto space = std::make_unique<RunSpace>();
  for (const auto& backend : backends_) space->workspaces.push_back(backend->make_workspace(crew));
  return space;
}

namespace {

void run_stage(const Pipeline::Stage& stage, RunSpace& space, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) {
  stage.executable->run(*space.workspaces[stage.backend_index], caches, batch, io, cancel);
}

}  // namespace

void Pipeline::body(RunSpace& space, CacheSet* caches, const Batch& batch, std::span<float> out, const Cancel& cancel,
                    const Look& look) const {
  std::span<const float> hidden;
  std::size_t finished = 0;
  for (std::size_t i = 0; i < body_.size(); ++i) {
    const Stage& stage = body_[i];
    Io io{.in = hidden, .out = out};
    if (i + 1 < body_.size()) {  // the next stage needs all rows of the batch, not only the selected rows
      std::vector<float>& border = space.borders[i % 2];
      border.resize(static_cast<std::size_t>(batch.rows) * static_cast<std::size_t>(stage.output_width));
      io.out = border;
    }
    run_stage(stage, space, caches ? caches->stage(i) : nullptr, batch, io, cancel);
    hidden = io.out;
    if (look && !stage.unfinished) look(finished++, hidden);
  }
}

void Pipeline::head(RunSpace& space, std::span<const float> hidden, std::span<float> logits, const Cancel& cancel) const {
  if (!head_.executable) fail(ErrorKind::unsupported_task, "this model has no output head");
  Batch batch;
  batch.rows = static_cast<std::int32_t>(hidden.size() / static_cast<std::size_t>(head_.input_width));
  run_stage(head_, space, nullptr, batch, {.in = hidden, .out = logits}, cancel);
}

void Pipeline::top(RunSpace& space, std::span<const float> hidden, const Batch& lists, std::span<float> out, const Cancel& cancel) const {
  if (!top_.executable) fail(ErrorKind::unsupported_task, "this model's device gives whole rows of logits");
  Batch batch = lists;
  batch.rows = static_cast<std::int32_t>(hidden.size() / static_cast<std::size_t>(top_.input_width));
  run_stage(top_, space, nullptr, batch, {.in = hidden, .out = out}, cancel);
}

void Pipeline::draft(RunSpace& space, CacheSet& caches, const Batch& batch, bool after_trunk, std::span<const float> in,
                     std::span<float> out, const Cancel& cancel) const {
  if (!drafts()) fail(ErrorKind::unsupported_task, "this model has no draft head");
  run_stage(after_trunk ? draft_.first : draft_.next, space, caches.stage(body_.size() - 1), batch, {.in = in, .out = out}, cancel);
}

void Pipeline::draft_logits(RunSpace& space, std::span<const float> rows, std::span<float> logits, const Cancel& cancel) const {
  Batch batch;
  batch.rows = static_cast<std::int32_t>(rows.size() / static_cast<std::size_t>(draft_.logits.input_width));
  run_stage(draft_.logits, space, nullptr, batch, {.in = rows, .out = logits}, cancel);
}

void Pipeline::log_probs(RunSpace& space, std::span<const float> hidden, std::span<const std::int32_t> targets, std::span<float> out,
                         const Cancel& cancel) const {
  if (!log_probs_.executable) fail(ErrorKind::unsupported_task, "this model has no output head");
  Batch batch;
  batch.rows = static_cast<std::int32_t>(targets.size());
  batch.ids = targets;
  run_stage(log_probs_, space, nullptr, batch, {.in = hidden, .out = out}, cancel);
}

}  // namespace pumice::engine
