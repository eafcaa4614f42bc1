// Decides which sequences take part in the next step, and how many token rows the step may have. Sequences are admitted in the order of
// their requests. Each running sequence holds cache pages up to its next token. If no page is left, the running sequence that comes last in
// this order is preempted. Admission changes sequences and the page pool. The engine thread calls it under the scheduler's lock.
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
  std::int32_t running = 256;   // maximum number of requests that take part in steps; further requests wait
  std::int32_t waiting = 1024;  // maximum number of requests that wait; if so many wait, Request::start() throws overloaded
  double step_seconds = 0.1;    // intended maximum duration of a step that computes rows of a prompt while another request decodes
};

struct Plan {
  // Sequences that run or wait for pages, in the order of their requests. Sequences that must not take part in the step are left out
  // (Admission::gather).
  std::span<Sequence* const> live;
  std::int64_t decode_rows = 0, prompt_rows = 0;  // maximum number of decode rows and of prompt rows in the step
  // Number of prompt rows that take as long as one row of a text whose logits or scores are wanted (TextTask). Such a row needs the head,
  // too.
  double text_price = 1;
  std::int64_t preempted = 0;  // number of sequences whose pages were taken for other sequences
  // Sequences that cannot get pages, each with its error. Their requests must fail.
  std::vector<std::pair<Sequence*, std::exception_ptr>> failed;
  // Texts that only need pages (TextTask::Wants::room) and have just received them.
  std::vector<const Sequence*> held;
};

class Admission {
 public:
  Admission(Runtime& runtime, const StepCost& cost) : runtime_(runtime), cost_(cost) {}

  // Returns the plan of the next step. `requests` must not contain a request that has ended. The plan is valid until the next call.
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
  std::unordered_set<std::uint64_t> on_their_way_;  // hashes of the prompt pages that running sequences are about to compute
};

}  // namespace pumice::engine
