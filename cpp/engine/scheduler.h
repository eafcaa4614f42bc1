// One batch for all callers of a decoder: each step takes rows of every request's sequences.
//
// One thread makes the steps (the engine thread): it starts with the first request, sleeps without work, and ends with the scheduler.
// Callers wait for news of their own request alone (Request), so none of them can stop a step that others take part in, and what they do
// with a token goes on beside the next step.
//
// Sequences and requests change under one lock, between the steps, never while a device computes. So whatever holds the lock (a caller, a
// fork) sees them as after a whole step. The child of a fork() has all requests, at rest: one that is waited for there joins the child's
// own batch and goes on; the others, whose threads are not there, compute nothing.
//
// Who does what: Admission says who takes part in a step, Step computes it, Commit takes what it gave, NewsDesk tells callers, and Roster
// holds the requests and ends their sequences. Here are the thread and the lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/admission.h"
#include "engine/answers.h"
#include "engine/at_fork.h"
#include "engine/commit.h"
#include "engine/lock_order.h"
#include "engine/request.h"
#include "engine/roster.h"
#include "engine/runtime.h"
#include "engine/step.h"

namespace pumice::engine {

class Scheduler {
 public:
  explicit Scheduler(Runtime& runtime);  // the runtime outlives it, and it outlives its requests
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws as make_request() does.
  std::shared_ptr<Request> request(const std::vector<std::vector<std::int32_t>>& prompts, std::span<const GenerateParams> params);
  std::shared_ptr<Request> request(const std::vector<std::vector<std::int32_t>>& prompts, const GenerateParams& params) {
    return request(prompts, std::span(&params, 1));
  }
  Runtime& runtime() const { return runtime_; }

  // Pages of the pool were given back by somebody else than this scheduler: another model's that guesses with this one (Drafter).
  void pages_came();

  // The news of all requests that have been started: one call a step for many readers. Waits for some, for wake_pump(), or so long.
  std::vector<RequestNews> pump(double max_ms);
  void wake_pump();

  void set_limits(const Limits& limits);
  Limits limits() const;
  SchedulerStats stats() const;

 private:
  friend class Request;
  friend class TextRequest;
  using Lock = SchedulerLock;

  // All under mutex_.
  void check_room() const;           // for one more request; throws overloaded
  void join(RequestState& request);  // the batch, unless it is there or has ended
  void stop_unwanted_step();         // where all its requests are closed

  void work();
  void choose_answers(Lock& lock);
  void end_late();
  bool plan();  // false: nothing can be computed now
  void sleep(Lock& lock);
  void run_step(Lock& lock);
  void step_is_over();
  void let_go(Lock& lock);
  void forget_parent();

  Runtime& runtime_;
  mutable SchedulerMutex mutex_;
  std::unique_ptr<std::thread> thread_;
  bool quit_ = false;
  Limits limits_;
  WorkSignal work_;
  SchedulerStats counts_;  // stats() adds how many requests run, wait and lag
  StepCost cost_;          // of steps that only decode
  Roster roster_;
  NewsDesk news_;
  Admission admission_;
  Commit commit_;
  std::unique_ptr<Step> step_ = std::make_unique<Step>();
  std::unique_ptr<Answers> answers_ = std::make_unique<Answers>();
  std::optional<Cancel> cancel_;  // of the running step
  Requests parents_;              // of the process that forked: not destroyed inside of a fork's hook
  const AtFork at_fork_;
};

}  // namespace pumice::engine
