// One batch for all callers of a decoder: each step takes rows of every request's sequences.
//
// One thread makes the steps (the engine thread): it starts with the first request, sleeps without work, and ends with the scheduler.
// Callers wait for news of their own request alone (Request), so none of them can stop a step that others take part in, and what they do
// with a token goes on beside the next step.
//
// All that sequences and requests are is changed under one lock, between the steps, never while a device computes. So whatever holds the
// lock (a caller, a fork) sees them as after a whole step. The child of a fork() has all requests, at rest: one that is waited for there
// joins the child's own batch and goes on; the others, whose threads are not there, compute nothing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/at_fork.h"
#include "engine/request.h"
#include "engine/runtime.h"
#include "engine/step.h"

namespace pumice::engine {

struct Limits {
  std::int32_t running = 256;   // requests that steps take rows of; others wait
  std::int32_t waiting = 1024;  // so many more, and start() refuses the next one
  double step_seconds = 0.1;    // of a step that reads a prompt while another request decodes
};

struct SchedulerStats {
  std::int64_t running = 0, waiting = 0, lagging = 0;  // requests: with pages; without; of which all that is not ended sits out
  std::int64_t rows = 0;                               // of the last step
  std::int64_t steps = 0, prompt_tokens = 0, decoded_tokens = 0;  // since the start: computed, and chosen
  std::int64_t preempted = 0;                          // sequences that gave their pages to others, and are computed again
  double busy_seconds = 0;                             // in steps
};

// What pump() has to say of a request.
struct RequestNews {
  std::uint64_t tag;
  std::vector<News> news;
  bool ended;  // nothing more will come; where an error ended it, take() throws it
};

class Scheduler {
 public:
  explicit Scheduler(Runtime& runtime);  // which outlives it, and whose requests' callers do not
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws as Request does. The request is closed when the last copy of what is given is gone.
  std::shared_ptr<Request> request(const std::vector<std::vector<std::int32_t>>& prompts, std::span<const GenerateParams> params);
  std::shared_ptr<Request> request(const std::vector<std::vector<std::int32_t>>& prompts, const GenerateParams& params) {
    return request(prompts, std::span(&params, 1));
  }

  // The news of all requests that have been started: one call a step for many readers. Waits for some, for wake_pump(), or so long.
  std::vector<RequestNews> pump(double max_ms);
  void wake_pump();

  void set_limits(const Limits& limits);
  Limits limits() const;
  SchedulerStats stats() const;

 private:
  friend class Request;
  using Lock = std::unique_lock<std::mutex>;

  // All under mutex_.
  void check_room() const;       // for one more; throws overloaded
  void join(Request& request);   // the batch, unless it is there or has ended
  void tell(Request& request);   // whoever reads it, if there is something to be told
  void look_again();             // there may be work
  void has_read(Reader& reader);
  void drop(Sequence& sequence); // now, or with the step that it is in
  void drop(Request& request);
  void end(Sequence& sequence, Finish finish);
  void start_again(Sequence& sequence);  // gives its pages back; it waits
  Sequence* last_running(std::int32_t below);  // of less priority than that; null: none
  void fail_request(Request& request, std::exception_ptr error);
  void leave(std::exception_ptr error);  // all of them
  void revive(Request& request);

  void work();
  bool plan();  // false: nothing can be computed now
  void gather();
  void follow_rope();
  void make_room();
  void admit(std::int64_t rows_left);
  bool prefix_on_its_way(Sequence& sequence);
  void note_prefixes(Sequence& sequence);
  void make_guess_room(std::int64_t most_rows);
  bool others_decode() const;
  void run_step(Lock& lock);
  void commit(double seconds);
  void take_answers();
  void choose_answer(Sequence& sequence);
  void take_choice(Sequence& sequence, const Choice& choice);
  void take_token(Sequence& sequence, const Choice& choice);
  void take_choices(const Step::Part& part, double seconds);
  void give_up_drafted(Sequence& sequence);
  void free_drafted(Lock& lock);
  void end_step();
  void give_way(Lock& lock);
  void let_read(Lock& lock);
  void forget_parent();

  Runtime& runtime_;
  mutable std::mutex mutex_;
  std::unique_ptr<std::condition_variable> wake_ = std::make_unique<std::condition_variable>();
  std::unique_ptr<std::thread> thread_;
  bool quit_ = false, changed_ = false;  // changed_: since the last plan
  bool hungry_ = false;                  // sequences wait for pages, and none runs
  const bool crowded_;                   // the device's threads leave no cpu to those who read
  Limits limits_;
  SchedulerStats counts_;                           // of which stats() counts the requests
  std::vector<std::shared_ptr<Request>> requests_;  // the highest priority first; of equal ones, first come, first
  std::vector<std::shared_ptr<Request>> queue_;     // of those that are pumped: with news
  std::unique_ptr<std::condition_variable> pump_ = std::make_unique<std::condition_variable>();
  std::int32_t pumping_ = 0;                        // threads that wait in pump()
  bool pump_woken_ = false;
  Reader pump_reader_;
  std::vector<std::shared_ptr<Request>> parents_;   // of the process that forked: not destroyed inside of a fork's hook
  std::vector<Sequence*> live_;                     // of the plan: those that have not ended and do not sit out, in the order of requests_
  std::unordered_set<std::uint64_t> on_their_way_;  // beginnings of texts that are being computed
  std::unique_ptr<Step> step_ = std::make_unique<Step>();
  std::optional<Cancel> cancel_;  // of the running step
  std::int64_t decoding_ = 0;     // rows of the step that are no guesses and no prompts'
  Sampler answers_;               // chooses from the logits that callers change
  StepCost cost_;                 // of steps that only decode
  std::vector<std::unique_ptr<Drafted>> ended_;  // of sequences that have ended: other models' pages, which are given back without the lock
  const AtFork at_fork_;
};

}  // namespace pumice::engine
