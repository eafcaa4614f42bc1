// Who takes part in the next step, and with how many rows. Pages decide: sequences run as long as each can have a page for its next token,
// in the order of their requests, and the last to come steps back. Works on sequences and the page pool alone; needs no thread.
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
  std::int32_t waiting = 1024;  // so many more may wait, and start() refuses the next one
  double step_seconds = 0.1;    // of a step that reads a prompt while another request decodes
};

struct Plan {
  std::span<Sequence* const> live;                               // the sequences that take part, in the order of their requests
  std::int64_t decode_rows = 0, prompt_rows = 0;                 // most rows of the step
  double text_price = 1;                                         // prompt rows that a row of a text takes of which each row gives something
  std::int64_t preempted = 0;                                    // sequences that gave their pages to others
  std::vector<std::pair<Sequence*, std::exception_ptr>> failed;  // no pages can be had for them
  std::vector<const Sequence*> held;                             // texts that wanted pages alone, and have them now
};

inline constexpr std::int64_t kGuessedRows = 64;  // rows that decode, and guesses: more of them count as a prompt to a device

class Admission {
 public:
  Admission(Runtime& runtime, const StepCost& cost) : runtime_(runtime), cost_(cost) {}

  // requests: none has ended. What the plan points to stays until the next call.
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
  std::unordered_set<std::uint64_t> on_their_way_;  // beginnings of texts that running sequences compute
};

}  // namespace pumice::engine
