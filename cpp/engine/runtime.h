// A pipeline with what its calls share: page pool, limits, spaces.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/at_fork.h"
#include "engine/page_pool.h"
#include "engine/pipeline.h"
#include "model/config.h"

namespace pumice::engine {

// Spaces, made when first needed and used again by later calls. There are few: a device runs one team at a time anyway, so a second team
// space only lets one caller prepare while another one computes. Whoever comes when all are taken waits its turn, first come, first served.
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
    std::deque<const void*> queue;  // who waits
  };
  Shelf& shelf(Crew crew) { return crew == Crew::team ? team_ : solo_; }
  void put_back(Crew crew, Set set);

  void forget_parent();

  const Pipeline& pipeline_;
  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> returned_;
  Shelf team_{.limit = 2}, solo_{.limit = 1};
  const AtFork at_fork_;
};

// Rows of a decoder's step that scratch is planned for, and that none exceeds.
inline constexpr std::int32_t kPlannedRows = 512;

// Rows of one step. Says nothing about results: a row's bits do not depend on its batch.
class Pace {
 public:
  // Of prompts: as many as take about 0.4 s, so that callers of a slow model get turns; 128 to 512, never more than most().
  std::int32_t rows() const;
  // As many as take so long, and at least `least`; 32 where nothing is known yet.
  std::int32_t rows_within(double seconds, std::int64_t least) const;
  // Of all kinds: what is planned for, or less where the memory of a device turned out not to hold a run of so many.
  std::int32_t most() const { return most_.load(std::memory_order_relaxed); }
  void measured(std::int32_t rows, double seconds);
  void too_many(std::int32_t rows);  // from now on half of them
  // The head on so many rows of a text took so long. text_price(): how many rows of a prompt take as long as one of them, head and all; 2
  // where nothing is known yet.
  void measured_heads(std::int32_t rows, double seconds);
  double text_price() const;

 private:
  std::atomic<float> seconds_per_row_{0}, head_seconds_per_row_{0};
  std::atomic<std::int32_t> most_{kPlannedRows};
};

// Rows of logits that are worked on at once: about 16 MiB.
std::int32_t head_rows(std::int32_t vocab);

struct Runtime {
  Runtime(const Pipeline& pipeline, PagePool* pages, std::int32_t n_ctx, std::int32_t vocab, std::int32_t types,
          std::span<const RopeTable> ropes = {})
      : pipeline(pipeline), pages(pages), n_ctx(n_ctx), vocab(vocab), types(types), ropes(ropes), spaces(pipeline) {}

  const Pipeline& pipeline;
  PagePool* const pages;     // null: no caches (encoders)
  const std::int32_t n_ctx;  // tokens of one sequence
  const std::int32_t vocab;  // valid ids are below
  const std::int32_t types;  // valid type ids are below (encoders)
  const std::span<const RopeTable> ropes;
  model::TextEnd text_end;  // of pooled texts
  RunSpaces spaces;
  Pace pace;

  // Throws invalid_argument naming the first id that is no token. `what`: "prompt 3", "text 17".
  void check_ids(std::span<const std::int32_t> ids, const char* what, std::int64_t index) const;
  // Texts of lengths with equal stages turn alike, and share pages.
  std::int64_t rope_stage(std::int64_t length) const;
  // Must what was computed as the beginning of a text of `length` tokens be computed anew in one of `longer`? So it is with longrope. Where
  // the frequencies follow each length (dynamic NTK), keys stay as they turned.
  bool rope_outgrown(std::int64_t length, std::int64_t longer) const;
  std::int32_t head_rows() const { return engine::head_rows(pipeline.vocab_size()); }

  // The body of a decoder's batch, measured by `pace`. False: a device has no memory for a run of so many rows (what a GPU holds is known
  // when it is tried), nothing happened, and pace.most() is half of them now.
  bool body(RunSpace& space, const Batch& batch, std::span<float> out, const Cancel& cancel);
};

}  // namespace pumice::engine
