// A pipeline together with what its calls share: the page pool, limits and run spaces.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/at_fork.h"
#include "engine/lock_order.h"
#include "engine/page_pool.h"
#include "engine/pipeline.h"
#include "model/config.h"

namespace pumice::engine {

// Run spaces, made when they are first needed and used again by later calls. Teams have two: a device runs one team at a time, and with the
// second space another caller can prepare meanwhile. Solo runs have one set. A call that finds no free space waits; calls are served in the
// order in which they came.
class RunSpaces {
 public:
  explicit RunSpaces(const Pipeline& pipeline);
  RunSpaces(const RunSpaces&) = delete;
  RunSpaces& operator=(const RunSpaces&) = delete;

  using Set = std::vector<std::unique_ptr<RunSpace>>;  // team: one space; solo: one per worker of the device
  class Lease {
   public:
    Lease(RunSpaces& pool, Crew crew, Set set) : pool_(pool), crew_(crew), set_(std::move(set)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { pool_.put_back(crew_, std::move(set_)); }
    RunSpace& operator[](std::size_t space) const { return *set_[space]; }

   private:
    RunSpaces& pool_;
    const Crew crew_;
    Set set_;
  };
  Lease take(Crew crew, const Cancel& cancel);

 private:
  struct Shelf {
    int limit;
    int made = 0;
    std::vector<Set> idle;
    std::deque<const void*> queue;  // one entry per waiting call
  };
  Shelf& shelf(Crew crew) { return crew == Crew::team ? team_ : solo_; }
  void put_back(Crew crew, Set set);

  void forget_parent();

  const Pipeline& pipeline_;
  OrderedMutex<LockRank::run_spaces> mutex_;
  std::unique_ptr<Condition> returned_;
  Shelf team_{.limit = 2}, solo_{.limit = 1};
  const AtFork at_fork_;
};

// Number of rows that a decoder's scratch is planned for. No step has more.
inline constexpr std::int32_t kPlannedRows = 512;

// How many rows of tokens a step should have. Results do not depend on it, because a row's bits do not depend on its batch.
class Pace {
 public:
  // Returns how many rows of prompts take about 0.4 s, so that all callers of a slow model make progress: 128 to 512, but not more than
  // most().
  std::int32_t rows() const;
  // Returns how many rows take `seconds`, at least `least`. Returns 32 before the first measurement.
  std::int32_t rows_within(double seconds, std::int64_t least) const;
  // Returns the maximum number of rows of all kinds together: kPlannedRows, or fewer after a run of so many did not fit into a device's
  // memory.
  std::int32_t most() const { return most_.load(std::memory_order_relaxed); }
  void measured(std::int32_t rows, double seconds);
  void too_many(std::int32_t rows);  // halves most(), after a run of so many rows did not fit
  // The head took `seconds` for `rows` rows of a text.
  void measured_heads(std::int32_t rows, double seconds);
  // Returns how many rows of a prompt take as long as one row of a text with its head; 2 before the first measurement.
  double text_price() const;

 private:
  std::atomic<float> seconds_per_row_{0}, head_seconds_per_row_{0};
  std::atomic<std::int32_t> most_{kPlannedRows};
};

// Returns how many rows of logits are computed at once: about 16 MiB.
std::int32_t head_rows(std::int32_t vocab);

struct Runtime {
  Runtime(const Pipeline& pipeline, PagePool* pages, std::int32_t n_ctx, std::int32_t vocab, std::int32_t types,
          std::span<const RopeTable> ropes = {})
      : pipeline(pipeline), pages(pages), n_ctx(n_ctx), vocab(vocab), types(types), ropes(ropes), spaces(pipeline) {}

  const Pipeline& pipeline;
  PagePool* const pages;     // null without caches (encoders)
  const std::int32_t n_ctx;  // maximum number of tokens in one sequence
  const std::int32_t vocab;  // valid ids are below it
  const std::int32_t types;  // valid type ids are below it (encoders)
  const std::span<const RopeTable> ropes;
  model::TextEnd text_end;  // how the end of a text is found, for pooling
  RunSpaces spaces;
  Pace pace;

  // Throws invalid_argument that names the first id that is no token. `what` and `index` name the text in the message: "prompt 3".
  void check_ids(std::span<const std::int32_t> ids, const char* what, std::int64_t index) const;
  // Returns the rope stage of a text of this length. Texts of the same stage have equal rotations, so they may share pages.
  std::int64_t rope_stage(std::int64_t length) const;
  // Returns whether the keys of a text of `length` tokens must be computed anew when it grows to `longer` tokens. True with LongRoPE if it
  // changes its frequencies in between. With dynamic NTK keys stay as they were rotated.
  bool rope_outgrown(std::int64_t length, std::int64_t longer) const;
  std::int32_t head_rows() const { return engine::head_rows(pipeline.vocab_size()); }

  // Runs a decoder's batch and reports its duration to `pace`. Returns false if a device has no memory for so many rows (on a GPU, only an
  // attempt shows this). Then nothing has changed except pace.most(), which is now at most half of the rows.
  bool body(RunSpace& space, const Batch& batch, std::span<float> out, const Cancel& cancel);
};

}  // namespace pumice::engine
