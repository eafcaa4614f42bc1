// A Pipeline runs a model on its devices: first the stages of the body, in order, then the head. A stage is a range of consecutive layers
// on one device, or a part of such a range (engine/stage_parts.h). Its output rows are the input of the next stage. The scheduler and the
// embedder pass ids in and get hidden rows or logits back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"

namespace pumice::engine {

// The KV cache pages of all stages. A page id stands for the same positions of a text in every stage. This class is not thread-safe;
// PagePool guards it with its locks.
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
  // read_pages() copies pages to `out`, and write_pages() copies them back from `in`, one page after another. A page consists of its bytes
  // in the first stage, then its bytes in the second stage, and so on.
  void read_pages(std::span<const std::int32_t> pages, std::span<std::uint8_t> out);
  void write_pages(std::span<const std::int32_t> pages, std::span<const std::uint8_t> in);
  void reserve_states(std::int32_t states) {
    for (auto& store : stores_) store->reserve_states(states);
  }
  std::uint64_t state_bytes() const;
  void read_state(std::int32_t state, std::span<std::uint8_t> out);
  void write_state(std::int32_t state, std::span<const std::uint8_t> in);
  CacheStore* stage(std::size_t i) { return stores_[i].get(); }

 private:
  std::vector<std::unique_ptr<CacheStore>> stores_;  // one per body stage
};

// The memory that one run needs: a workspace for each device, and buffers for the hidden rows between stages. Later runs reuse the memory.
struct RunSpace {
  std::vector<std::unique_ptr<Workspace>> workspaces;  // one per backend, indexed by Stage::backend_index
  std::vector<float> borders[2];                       // hidden rows between stages: each stage reads one buffer and writes the other
};

class Pipeline {
 public:
  struct Stage {
    Backend* backend;
    std::size_t backend_index;
    std::shared_ptr<const Executable> executable;
    std::int32_t input_width = 0;   // floats per row; 0 if the input is ids
    std::int32_t output_width = 0;  // floats per row
    std::int32_t ranks = 0;         // number of largest logits that the stage finds in a row, if it runs Pipeline::top(); otherwise 0
    bool unfinished = false;        // true if the next stage runs the rest of the same layers, so that the output rows are not hidden rows
  };
  // The programs of a draft head (model::Config::draft) or of an assistant (model/assistant.h). `first` runs the layers for an id that was
  // chosen from a hidden row of the body. `next` runs the layers for an id that was itself guessed. `logits` computes the logits of the
  // rows that `first` and `next` return.
  struct Draft {
    Stage first, next, logits;
    // True for an assistant, which stores no keys and values. So all its guesses in a step have the position of the sequence's last id.
    // False for a draft head, which stores keys and values for each guess. So its guesses have consecutive positions.
    bool fixed = false;
  };
  Pipeline(std::vector<std::shared_ptr<Backend>> backends, std::vector<Stage> body, Stage head, Stage log_probs, Stage top);
  Pipeline(std::vector<std::shared_ptr<Backend>> backends, std::vector<Stage> body, Stage head, Stage log_probs, Stage top, Draft draft);

  const std::vector<Stage>& stages() const { return body_; }
  std::int32_t hidden_size() const { return hidden_size_; }  // number of columns in the rows of body()
  std::int32_t vocab_size() const { return vocab_size_; }    // number of columns in the rows of head(); 0 if there is no head

  // Returns the device with the fewest workers. A run of Crew::solo needs one worker of each device, so the number of this device's workers
  // limits how many such runs can go on at the same time.
  Backend& narrowest() const { return *narrowest_; }
  // Returns the device with the most workers. Its workers also do work that is not part of the model, such as choosing tokens.
  Backend& widest() const { return *widest_; }
  std::int64_t batch_rows() const { return batch_rows_; }  // number of token rows in a batch that keeps every device busy

  std::unique_ptr<RunSpace> make_space(Crew crew) const;

  // Runs the body and writes rows of hidden_size() floats to `out`. A decoder writes one row for each entry of batch.selected. An encoder
  // writes one pooled row for each segment, or one row for each token if the body does not pool. `look` is called after each stage that
  // finishes its layers. Its argument `stage` counts only such stages, from 0, and `rows` are the output rows of the stage.
  using Look = std::function<void(std::size_t stage, std::span<const float> rows)>;
  void body(RunSpace& space, CacheSet* caches, const Batch& batch, std::span<float> out, const Cancel& cancel, const Look& look = {}) const;
  // Computes the logits of each hidden row. `logits` has the shape rows x vocab_size().
  void head(RunSpace& space, std::span<const float> hidden, std::span<float> logits, const Cancel& cancel) const;
  // top() computes from each hidden row the largest logits among the allowed ids, and the logits of the reported ids. `lists` holds these
  // ids (Batch::allowed, Batch::reported). `out` has the shape rows x top_columns(), and Top in core/ops.h describes its rows. top() finds
  // at most ranks() largest logits. For more, head() is as fast or faster. If ranks() is 0, top() must not be called.
  std::int32_t ranks() const { return top_.ranks; }
  std::int32_t top_columns() const { return top_.output_width; }
  void top(RunSpace& space, std::span<const float> hidden, const Batch& lists, std::span<float> out, const Cancel& cancel) const;
  // draft() runs the layers of the draft head or the assistant on the last stage's device. Row i of `out` is computed from batch.ids[i] and
  // from row i of `in`. If `after_trunk` is true, row i of `in` is the body's hidden row at the position before that of batch.ids[i]. If it
  // is false, row i of `in` is the output row of an earlier call, from which batch.ids[i] was guessed. A draft head stores keys and values
  // in the pages of the batch's segments, in a cache that only the draft head reads. draft_logits() computes the logits of the output rows.
  bool drafts() const { return draft_.first.executable != nullptr; }
  bool drafts_from_one_position() const { return draft_.fixed; }
  std::int32_t draft_width() const { return draft_.logits.input_width; }  // number of columns in the output rows of draft()
  void draft(RunSpace& space, CacheSet& caches, const Batch& batch, bool after_trunk, std::span<const float> in, std::span<float> out,
             const Cancel& cancel) const;
  void draft_logits(RunSpace& space, std::span<const float> rows, std::span<float> logits, const Cancel& cancel) const;
  // Computes for each i the log-probability of token targets[i] under the logits of hidden row i. The logits of all rows are never in
  // memory at once.
  void log_probs(RunSpace& space, std::span<const float> hidden, std::span<const std::int32_t> targets, std::span<float> out,
                 const Cancel& cancel) const;

 private:
  std::vector<std::shared_ptr<Backend>> backends_;
  std::vector<Stage> body_;
  Stage head_, log_probs_, top_;
  Draft draft_;
  std::int32_t hidden_size_ = 0, vocab_size_ = 0;
  std::int64_t batch_rows_ = 1;
  Backend *narrowest_ = nullptr, *widest_ = nullptr;
};

}  // namespace pumice::engine
