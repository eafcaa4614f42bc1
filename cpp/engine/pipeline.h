// A model as it lies on its devices: the stages of its body in order (one per run of layers on one device), then its head.
// Between two devices the hidden rows cross once. Everything above (generator, embedder) sees ids in, hidden rows or logits out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"

namespace pumice::engine {

// The cache pages of every stage. A page id means the same positions in all of them. Not thread-safe: the page pool guards it.
class CacheSet {
 public:
  explicit CacheSet(std::vector<std::unique_ptr<CacheStore>> stores) : stores_(std::move(stores)) {}
  void reserve(std::int32_t pages) {
    for (auto& store : stores_) store->reserve(pages);
  }
  void copy_page(std::int32_t from, std::int32_t to) {
    for (auto& store : stores_) store->copy_page(from, to);
  }
  std::uint64_t page_bytes() const;
  // Pages as bytes, page after page, of each what its stages keep, one after another.
  void read_pages(std::span<const std::int32_t> pages, std::span<std::uint8_t> out);
  void write_pages(std::span<const std::int32_t> pages, std::span<const std::uint8_t> in);
  CacheStore* stage(std::size_t i) { return stores_[i].get(); }

 private:
  std::vector<std::unique_ptr<CacheStore>> stores_;  // one per body stage
};

// What one run needs for itself: a workspace per device, and the hidden rows between stages. Reused from run to run.
struct RunSpace {
  std::vector<std::unique_ptr<Workspace>> workspaces;  // per backend
  std::vector<float> borders[2];                       // what one stage gives and the next one takes, in turns
};

class Pipeline {
 public:
  struct Stage {
    Backend* backend;
    std::size_t backend_index;
    std::shared_ptr<const Executable> executable;
    std::int32_t input_width = 0, output_width = 0;  // floats per row; 0 input: takes ids
  };
  Pipeline(std::vector<std::shared_ptr<Backend>> backends, std::vector<Stage> body, Stage head, Stage log_probs, Stage top);

  const std::vector<Stage>& stages() const { return body_; }
  std::int32_t hidden_size() const { return hidden_size_; }  // width of what body() gives
  std::int32_t vocab_size() const { return vocab_size_; }    // width of what head() gives: 0 without a head

  // Solo runs pass through every device: as many go on at once as the device with the fewest workers takes, and on its workers.
  Backend& narrowest() const { return *narrowest_; }
  // Work of the host beside the model (choosing tokens) goes to the device with the most workers.
  Backend& widest() const { return *widest_; }
  std::int64_t batch_rows() const { return batch_rows_; }  // token rows of one batch that keep every device busy

  std::unique_ptr<RunSpace> make_space(Crew crew) const;

  // Runs the body. Decoders: one row of hidden_size() per batch.selected; encoders: one pooled row per segment.
  // `look`, when given, sees what each stage gives.
  using Look = std::function<void(std::size_t stage, std::span<const float> rows)>;
  void body(RunSpace& space, CacheSet* caches, const Batch& batch, std::span<float> out, const Cancel& cancel, const Look& look = {}) const;
  // Logits of hidden rows: rows x vocab_size().
  void head(RunSpace& space, std::span<const float> hidden, std::span<float> logits, const Cancel& cancel) const;
  // The same hidden rows' largest logits that `lists` allows, and those of its reported ids (core/ops.h, Top): rows x top_columns(). 0
  // columns where the device gives whole rows as fast: there they are all that is needed.
  std::int32_t top_columns() const { return top_.output_width; }
  void top(RunSpace& space, std::span<const float> hidden, const Batch& lists, std::span<float> out, const Cancel& cancel) const;
  // Log-probability of targets[i] after hidden row i, without a rows x vocabulary array at the caller's.
  void log_probs(RunSpace& space, std::span<const float> hidden, std::span<const std::int32_t> targets, std::span<float> out,
                 const Cancel& cancel) const;

 private:
  std::vector<std::shared_ptr<Backend>> backends_;
  std::vector<Stage> body_;
  Stage head_, log_probs_, top_;
  std::int32_t hidden_size_ = 0, vocab_size_ = 0;
  std::int64_t batch_rows_ = 1;
  Backend *narrowest_ = nullptr, *widest_ = nullptr;
};

}  // namespace pumice::engine
