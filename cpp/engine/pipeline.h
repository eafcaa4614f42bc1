// A model on its devices: the stages of its body in order, then its head. A stage is a run of layers on one device; hidden rows are copied
// from stage to stage. The scheduler and the embedder pass ids in and get hidden rows or logits back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"

namespace pumice::engine {

// The cache pages of all stages. A page id stands for the same positions of a text in every stage. Not thread-safe: the page pool's lock
// guards it.
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
  // Copies pages as bytes, page after page. The bytes of a page are those of its stages, in order.
  void read_pages(std::span<const std::int32_t> pages, std::span<std::uint8_t> out);
  void write_pages(std::span<const std::int32_t> pages, std::span<const std::uint8_t> in);
  CacheStore* stage(std::size_t i) { return stores_[i].get(); }

 private:
  std::vector<std::unique_ptr<CacheStore>> stores_;  // one per body stage
};

// Memory of one run: a workspace per device, and the hidden rows between stages. Later runs use it again.
struct RunSpace {
  std::vector<std::unique_ptr<Workspace>> workspaces;  // by backend
  std::vector<float> borders[2];                       // rows between stages; a stage reads one and writes the other
};

class Pipeline {
 public:
  struct Stage {
    Backend* backend;
    std::size_t backend_index;
    std::shared_ptr<const Executable> executable;
    std::int32_t input_width = 0;   // floats per row; 0 if the input is ids
    std::int32_t output_width = 0;  // floats per row
  };
  Pipeline(std::vector<std::shared_ptr<Backend>> backends, std::vector<Stage> body, Stage head, Stage log_probs, Stage top);

  const std::vector<Stage>& stages() const { return body_; }
  std::int32_t hidden_size() const { return hidden_size_; }  // columns of body()'s rows
  std::int32_t vocab_size() const { return vocab_size_; }    // columns of head()'s rows; 0 without a head

  // The device with the fewest workers. A solo run passes through every device, so no more solo runs go on at once than this device has
  // workers.
  Backend& narrowest() const { return *narrowest_; }
  // The device with the most workers, for work of the host beside the model (choosing tokens).
  Backend& widest() const { return *widest_; }
  std::int64_t batch_rows() const { return batch_rows_; }  // number of token rows in a batch that keeps every device busy

  std::unique_ptr<RunSpace> make_space(Crew crew) const;

  // Runs the body. The result has rows of hidden_size(): in a decoder one for each of batch.selected, in an encoder one pooled row per
  // segment. `look` is called with the output rows of each stage.
  using Look = std::function<void(std::size_t stage, std::span<const float> rows)>;
  void body(RunSpace& space, CacheSet* caches, const Batch& batch, std::span<float> out, const Cancel& cancel, const Look& look = {}) const;
  // Computes the logits of hidden rows: rows x vocab_size().
  void head(RunSpace& space, std::span<const float> hidden, std::span<float> logits, const Cancel& cancel) const;
  // Computes, for each hidden row, the largest logits that `lists` allows, and the logits of its reported ids (Top in core/ops.h): rows x
  // top_columns(). top_columns() is 0 if the device computes whole rows as fast; use head() there.
  std::int32_t top_columns() const { return top_.output_width; }
  void top(RunSpace& space, std::span<const float> hidden, const Batch& lists, std::span<float> out, const Cancel& cancel) const;
  // Computes the log-probability of targets[i] after hidden row i, without an array of rows x vocabulary.
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
