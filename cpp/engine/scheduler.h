// The scheduler of a decoder. All callers share one batch: each step computes rows of the sequences of many requests.
//
// One thread, the engine thread, runs the steps. It starts with the first request, sleeps while there is no work, and ends with the
// scheduler. A caller only waits for news of its own request (Request). So no caller can stop a step that computes rows of other requests,
// and callers process a token while the next step runs.
//
// Sequences and requests change only under one lock and only between steps, never while a device computes. So any thread that holds the
// lock, such as a caller or a thread that calls fork(), finds them in the state after a complete step. After a fork() the child has copies
// of all requests, but none of them is in a batch. When the child waits for a request, that request enters the child's own batch and
// continues.
//
// The scheduler consists of several classes. Admission decides which sequences take part in a step, Step computes the step, Commit enters
// its results, NewsDesk wakes the callers, and Roster holds the requests and ends their sequences. Scheduler itself has the thread and the
// lock.
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
  explicit Scheduler(Runtime& runtime);  // the runtime must outlive the scheduler, and the scheduler must outlive its requests
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Makes a request. Throws as make_request() does.
  std::shared_ptr<Request> request(const std::vector<std::vector<std::int32_t>>& prompts, std::span<const GenerateParams> params);
  std::shared_ptr<Request> request(const std::vector<std::vector<std::int32_t>>& prompts, const GenerateParams& params) {
    return request(prompts, std::span(&params, 1));
  }
  Runtime& runtime() const { return runtime_; }

  // Must be called when pages of the pool may have become free without this scheduler's doing. This happens if the model is the draft model
  // of another model, because a Drafter then takes and releases pages of the pool during the other model's steps.
  void pages_came();

  // Waits until a started request has news, until wake_pump() is called, or until max_ms have passed. Returns the news of all started
  // requests, so that one call per step serves many readers.
  std::vector<RequestNews> pump(double max_ms);
  void wake_pump();

  void set_limits(const Limits& limits);
  Limits limits() const;
  SchedulerStats stats() const;

 private:
  friend class Request;
  friend class TextRequest;
  using Lock = SchedulerLock;

  // The caller of these functions holds mutex_.
  void check_room() const;           // throws overloaded if Limits allows no further request
  void join(RequestState& request);  // puts a request into the batch, unless it is already there or has ended
  void stop_unwanted_step();         // stops the running step if all requests in it are closed

  void work();
  void choose_answers(Lock& lock);
  void end_late();
  bool plan();  // plans the next step; returns false if nothing can be computed now
  void plan_snapshots(const Step::Part& part);
  void sleep(Lock& lock);
  void run_step(Lock& lock);
  void step_is_over();
  void fail_all(Lock& lock, const std::exception_ptr& error);
  void let_go(Lock& lock);
  void forget_parent();

  Runtime& runtime_;
  mutable SchedulerMutex mutex_;
  std::unique_ptr<std::thread> thread_;
  bool quit_ = false;
  Limits limits_;
  WorkSignal work_;
  SchedulerStats counts_;  // `running`, `waiting` and `lagging` are not kept here; stats() counts them
  StepCost cost_;          // estimates the duration of steps that only decode
  Roster roster_;
  NewsDesk news_;
  Admission admission_;
  Commit commit_;
  std::unique_ptr<Step> step_ = std::make_unique<Step>();
  std::unique_ptr<Answers> answers_ = std::make_unique<Answers>();
  std::optional<Cancel> cancel_;  // stops the running step on request; empty if no step runs
  Requests parents_;              // in the child of a fork: the parent's requests, kept because they must not be destroyed within fork()
  const AtFork at_fork_;
};

}  // namespace pumice::engine
