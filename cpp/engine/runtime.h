// A pipeline with what its calls share: the page pool, limits and run spaces.
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

// Run spaces, which are made when they are first needed and used again by later calls. There are two for teams, because a device runs one
// team at a time and a second space lets another caller prepare meanwhile, and one set for solo runs. A call that finds none free waits;
// calls are served in the order in which they came.
class RunSpaces {
 public:
  explicit RunSpaces(const Pipeline& pipeline);
  RunSpaces(const RunSpaces&) = delete;
  RunSpaces& operator=(const RunSpaces&) = delete;

  using Set = std::vector<std::unique_ptr<RunSpace>>;  // team: one space; solo: one for each worker of the device
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
    std::deque<const void*> queue;  // one entry for each waiting call
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

// Rows that scratch of a decoder is planned for. No step has more.
inline constexpr std::int32_t kPlannedRows = 512;

// How many rows a step should have. Results do not depend on it, because a row's bits do not depend on its batch.
class Pace {
 public:
  // Rows of prompts that take about 0.4 s, so that the callers of a slow model get turns: 128 to 512, at most most().
  std::int32_t rows() const;
  // Rows that take so many seconds, at least `least`. 32 before the first measurement.
  std::int32_t rows_within(double seconds, std::int64_t least) const;
  // Rows of all kinds together: kPlannedRows, or fewer where a device's memory turned out too small for a run of so many.
  std::int32_t most() const { return most_.load(std::memory_order_relaxed); }
  void measured(std::int32_t rows, double seconds);
  void too_many(std::int32_t rows);  // halves most() after a run of so many rows that did not fit
  // The head on so many rows of a text took so long.
  void measured_heads(std::int32_t rows, double seconds);
  // How many rows of a prompt take as long as one row of a text, head included; 2 before the first measurement.
  double text_price() const;

 private:
  std::atomic<float> seconds_per_row_{0}, head_seconds_per_row_{0};
  std::atomic<std::int32_t> most_{kPlannedRows};
};

// Rows of logits that are computed at once, about 16 MiB.
std::int32_t head_rows(std::int32_t vocab);

struct Runtime {
  Runtime(const Pipeline& pipeline, PagePool* pages, std::int32_t n_ctx, std::int32_t vocab, std::int32_t types,
          std::span<const RopeTable> ropes = {})
      : pipeline(pipeline), pages(pages), n_ctx(n_ctx), vocab(vocab), types(types), ropes(ropes), spaces(pipeline) {}

  const Pipeline& pipeline;
  PagePool* const pages;     // null without caches (encoders)
  const std::int32_t n_ctx;  // tokens of one sequence
  const std::int32_t vocab;  // valid ids are below it
  const std::int32_t types;  // valid type ids are below it (encoders)
  const std::span<const RopeTable> ropes;
  model::TextEnd text_end;  // where a text ends that is pooled
  RunSpaces spaces;
  Pace pace;

  // Throws invalid_argument with the first id that is no token. `what` and `index` name the text in the message: "prompt 3".
  void check_ids(std::span<const std::int32_t> ids, const char* what, std::int64_t index) const;
  // Texts whose lengths have the same stage turn alike, so that they may share pages.
  std::int64_t rope_stage(std::int64_t length) const;
  // Must keys of a text of `length` tokens be computed anew when it grows to `longer` tokens? Yes with LongRoPE, which changes its
  // frequencies. With dynamic NTK keys stay as they were turned.
  bool rope_outgrown(std::int64_t length, std::int64_t longer) const;
  std::int32_t head_rows() const { return engine::head_rows(pipeline.vocab_size()); }

  // Runs a decoder's batch and gives its time to `pace`. False: a device has no memory for so many rows, which on a GPU only a try tells.
  // Nothing has changed then but pace.most(), which is at most half of the rows.
  bool body(RunSpace& space, const Batch& batch, std::span<float> out, const Cancel& cancel);
};

}  // namespace pumice::engine
