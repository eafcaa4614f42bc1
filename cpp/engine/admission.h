// Decides which sequences take part in the next step, and with how many rows of tokens. Sequences run in the order of their requests as
// long as each can have a cache page for its next token. If no page is left, the last running sequence is preempted. Admission reads and
// changes sequences and the page pool; it has no thread of its own.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/news.h"
#include "engine/runtime.h"
#include "engine/speculation.h"

namespace pumice::engine {

struct Limits {
  std::int32_t running = 256;   // requests that take part in steps; others wait
  std::int32_t waiting = 1024;  // requests that wait beside them; start() refuses the next one
  double step_seconds = 0.1;    // maximum duration of a step that computes rows of a prompt while another request decodes
};

struct Plan {
  std::span<Sequence* const> live;                // the sequences that take part, in the order of their requests
  std::int64_t decode_rows = 0, prompt_rows = 0;  // maximum numbers of rows in the step
  double text_price = 1;                          // how many rows of a prompt take as long as one row that yields logits or a score
  std::int64_t preempted = 0;                     // number of sequences that lost their pages to others
  std::vector<std::pair<Sequence*, std::exception_ptr>> failed;  // sequences that the pool can never hold
  std::vector<const Sequence*> held;                             // texts that need nothing but pages, and have them now
};

// Maximum number of rows in a step that decode or are guesses. A device computes more rows with the kernels for prompts.
inline constexpr std::int64_t kGuessedRows = 64;

class Admission {
 public:
  Admission(Runtime& runtime, const StepCost& cost) : runtime_(runtime), cost_(cost) {}

  // None of `requests` has ended. The plan is valid until the next call.
  Plan plan(std::span<const std::shared_ptr<RequestState>> requests, const Limits& limits);

 private:
  void gather(std::span<const std::shared_ptr<RequestState>> requests, std::int32_t places);
  void follow_rope();
  void make_room();
  void admit(std::int64_t rows_left);
  bool find_pages(Sequence& sequence, std::int64_t& running);
  void refuse_hopeless();
  void make_guess_room(std::int64_t most_rows);
  std::int64_t guesses_wanted(const Sequence& sequence, std::int64_t decoding, std::int64_t rows_left) const;
  bool others_decode() const;
  void comes(Sequence& sequence);
  bool prefix_on_its_way(Sequence& sequence);
  Sequence* last_running(std::int32_t below) const;
  void preempt(Sequence& sequence);
  void fail(Sequence& sequence) { plan_.failed.emplace_back(&sequence, std::current_exception()); }
  bool failed(const Sequence& sequence) const;

  Runtime& runtime_;
  const StepCost& cost_;
  Plan plan_;
  std::vector<Sequence*> live_;
  std::unordered_set<std::uint64_t> on_their_way_;  // hashes of the pages that running sequences compute
};

}  // namespace pumice::engine
