// A Runtime is a pipeline together with the objects that all its calls share: the page pool, limits and run spaces.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/at_fork.h"
#include "engine/encode_counts.h"
#include "engine/lock_order.h"
#include "engine/page_pool.h"
#include "engine/pipeline.h"
#include "model/config.h"

namespace pumice::engine {

// Lends run spaces, which are the memory that runs need, to calls. Spaces are made when they are first needed, and later calls reuse them.
// There are two spaces for runs of Crew::team. A device does one such run at a time, but the second space lets another caller prepare its
// run during that time. There is one set of spaces for runs of Crew::solo. A call that finds no free space waits, and calls get spaces in
// the order in which they came.
class RunSpaces {
 public:
  explicit RunSpaces(const Pipeline& pipeline);
  RunSpaces(const RunSpaces&) = delete;
  RunSpaces& operator=(const RunSpaces&) = delete;

  using Set = std::vector<std::unique_ptr<RunSpace>>;  // one space for a team run; one space per worker of the device for solo runs
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
    int limit;     // maximum number of sets of run spaces
    int made = 0;  // number of sets that exist or are being made
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

// The number of rows that a decoder's scratch is planned for. No step has more rows.
inline constexpr std::int32_t kPlannedRows = 512;

// Maximum number of decode rows and guesses together in a step that has guesses. More guesses would not make decoding faster, because a
// device computes a step with more rows with its kernels for prompts.
inline constexpr std::int64_t kGuessedRows = 64;

// Decides from measured durations how many token rows a step should have. This number changes no result, because a row's bits do not
// depend on its batch.
class Pace {
 public:
  // Returns how many prompt rows a step should have: as many as take about 0.4 s, but at least 128 (or the number that at_least() was
  // given), at most kPlannedRows, and at most most(). Short steps let all callers of a slow model make progress.
  std::int32_t rows() const;
  // Raises the minimum of rows() to `rows`, for a model whose steps are inefficient with 128 rows. Must be called before the first step.
  void at_least(std::int32_t rows) { least_ = std::max(least_, std::min(rows, kPlannedRows)); }
  // Returns how many rows take `seconds`, but at least `least` and at most most(). Before the first measurement, 32 rows are assumed.
  std::int32_t rows_within(double seconds, std::int64_t least) const;
  // Returns the maximum number of rows in a step, for all kinds of rows together. It is kPlannedRows at first, and less after a device has
  // had too little memory for a run.
  std::int32_t most() const { return most_.load(std::memory_order_relaxed); }
  void measured(std::int32_t rows, double seconds);  // records that the body took `seconds` for `rows` rows
  void too_many(std::int32_t rows);  // lowers most() to rows / 2, because a run of `rows` rows did not fit into a device's memory
  // Records that the head took `seconds` for `rows` rows of a text.
  void measured_heads(std::int32_t rows, double seconds);
  // Returns how many prompt rows, for which no head is computed, take as long as one row with the head. Returns 2 before the first
  // measurement.
  double text_price() const;

 private:
  std::atomic<float> seconds_per_row_{0}, head_seconds_per_row_{0};
  std::atomic<std::int32_t> most_{kPlannedRows};
  // The minimum of rows(). Each step reads all weights, so steps with few rows are inefficient: with 64 rows instead of 128, prompts of 256
  // tokens were 10 to 20 % slower in a 1B model with float16 weights.
  std::int32_t least_ = 128;
};

// Returns how many prompt rows a step of a mixture should have so that each expert computes 16 rows on average. With fewer rows, a step
// spends most of its time reading the experts' weights.
std::int32_t rows_of_mixture(std::int32_t experts, std::int32_t chosen);

// The maximum number of values in the output rows of a micro-batch, which take 16 MiB. This limit matters most for sparse vectors. Their
// rows have a value for each token of the vocabulary, before they are reduced to the values above 0.
inline constexpr std::int64_t kMostPooled = 1 << 22;

// Returns how many rows of logits are computed at once, for a vocabulary of `vocab` tokens. These are as many rows as take 16 MiB, but at
// least 1 and at most 128.
std::int32_t head_rows(std::int32_t vocab);

struct Runtime {
  Runtime(const Pipeline& pipeline, PagePool* pages, std::int32_t n_ctx, std::int32_t vocab, std::int32_t types,
          std::span<const RopeTable> ropes = {})
      : pipeline(pipeline), pages(pages), n_ctx(n_ctx), vocab(vocab), types(types), ropes(ropes), spaces(pipeline) {}

  const Pipeline& pipeline;
  PagePool* const pages;     // null for encoders, which have no KV cache
  const std::int32_t n_ctx;  // maximum number of tokens in one sequence
  const std::int32_t vocab;  // number of token ids: valid ids are 0 to vocab - 1
  const std::int32_t types;  // number of type ids, for encoders: valid type ids are 0 to types - 1
  const std::span<const RopeTable> ropes;
  std::string why_no_draft;                // why the model has no draft head; empty if it has one (Pipeline::drafts)
  std::optional<model::TextEnd> text_end;  // which token pooling takes as the end of a text; if empty, the last token
  RunSpaces spaces;
  Pace pace;
  std::shared_ptr<EncodeCounts> encode_counts = std::make_shared<EncodeCounts>();  // counts of all encode calls of the model
  // Computes a text again, layer by layer, after its results contained a NaN or an infinity. Returns the last part of the error message,
  // which names the layer after which such a value first occurs, the token and the device. Never throws; returns "" if the text cannot be
  // computed again. `types` holds the type of each token, or is empty if all types are 0.
  std::function<std::string(std::span<const std::int32_t> ids, std::span<const std::int32_t> types, const Cancel& cancel)>
      where_not_finite = [](std::span<const std::int32_t>, std::span<const std::int32_t>, const Cancel&) { return std::string(); };

  // Throws invalid_argument if an id is not a token of the model. `what` and `index` name the text in the message, as in "prompt 3".
  void check_ids(std::span<const std::int32_t> ids, const char* what, std::int64_t index) const;
  // Returns the rope stage of a text of this length. In texts of the same stage, the rope rotates each position in the same way, so these
  // texts may share pages.
  std::int64_t rope_stage(std::int64_t length) const;
  // Returns true if the keys of a text of `length` tokens must be computed anew when the text grows to `longer` tokens. This is so with
  // LongRoPE if the frequencies change between the two lengths. With dynamic NTK, keys stay as they were rotated.
  bool rope_outgrown(std::int64_t length, std::int64_t longer) const;
  std::int32_t head_rows() const { return engine::head_rows(pipeline.vocab_size()); }

  // Runs a decoder's batch and enters its duration into `pace`. Returns false if a device has too little memory for so many rows. (On a
  // GPU, only an attempt shows this.) In that case nothing has changed except pace.most(), which is then at most half of batch.rows.
  bool body(RunSpace& space, const Batch& batch, std::span<float> out, const Cancel& cancel);
};

}  // namespace pumice::engine
