#include "engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "engine/devices.h"
#include "engine/snapshots.h"
#include "os/threads.h"

namespace pumice::engine {

Scheduler::Scheduler(Runtime& runtime)
    : runtime_(runtime),
      roster_(runtime.pages, work_),
      news_(work_, runtime.pipeline.widest().workers() >= processors()),
      admission_(runtime, cost_),
      commit_(runtime, roster_, cost_, counts_),
      at_fork_({.before = [this] { mutex_.lock(); },
                .in_parent = [this] { mutex_.unlock(); },
                .in_child =
                    [this] {
                      forget_parent();
                      mutex_.unlock();
                    }}) {}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
    if (cancel_) cancel_->request();
    work_.raise();
  }
  if (thread_) thread_->join();
}

// ---------------------------------------------------------------- for callers
std::shared_ptr<Request> Scheduler::request(const std::vector<std::vector<std::int32_t>>& prompts, std::span<const GenerateParams> params) {
  return std::make_shared<Request>(*this, make_request(runtime_, prompts, params));
}

void Scheduler::pages_came() {
  const std::lock_guard lock(mutex_);
  const auto waits = [](const Sequence& s) { return s.life == Sequence::Life::waiting; };
  if (std::ranges::any_of(roster_.requests(), [&](const auto& r) { return std::ranges::any_of(r->sequences, waits); })) work_.raise();
}

std::vector<RequestNews> Scheduler::pump(double max_ms) { return news_.pump(Lock(mutex_), max_ms); }

void Scheduler::wake_pump() {
  const std::lock_guard lock(mutex_);
  news_.wake_pump();
}

void Scheduler::set_limits(const Limits& limits) {
  require(limits.running >= 1, "running must be at least 1, not ", limits.running);
  require(limits.waiting >= 0, "waiting must be at least 0, not ", limits.waiting);
  require(limits.step_seconds > 0 && limits.step_seconds <= 1e6, "step_seconds must be more than 0 and at most 1e6, not ",
          limits.step_seconds);
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  work_.raise();
}

Limits Scheduler::limits() const {
  const std::lock_guard lock(mutex_);
  return limits_;
}

SchedulerStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = counts_;
  using Life = Sequence::Life;
  const auto runs = [](const Sequence& s) { return s.life == Life::running || s.life == Life::held; };
  const auto waits = [](const Sequence& s) { return (s.life == Life::waiting || s.life == Life::parked) && !s.lags() && !s.shown(); };
  for (const auto& request : roster_.requests()) {
    if (std::ranges::any_of(request->sequences, runs)) {
      ++stats.running;
    } else if (std::ranges::any_of(request->sequences, waits)) {
      ++stats.waiting;
    } else if (!request->ended()) {
      ++stats.lagging;
    }
  }
  return stats;
}

// ---------------------------------------------------------------- requests come and go
void Scheduler::check_room() const {
  const auto there = static_cast<std::int64_t>(roster_.requests().size()), most = std::int64_t{limits_.running} + limits_.waiting;
  if (there >= most)
    fail(ErrorKind::overloaded, "the model has ", there, " requests at work or waiting, and its limits are ", limits_.running, " and ",
         limits_.waiting, ": try again later, or raise them with set_limits()");
}

void Scheduler::join(RequestState& request) {
  if (request.life == RequestState::Life::left_behind)
    fail(ErrorKind::forked_device, "this was at work in another thread when the process forked; call again in the child");
  if (request.life == RequestState::Life::joined || request.ended()) return;
  roster_.let_go(std::exchange(parents_, {}));
  if (!thread_) {
    try {
      thread_ = std::make_unique<std::thread>([this] { work(); });
    } catch (const std::system_error& error) {
      fail(ErrorKind::out_of_memory, "the engine's thread cannot be started (", error.what(),
           "): raise the limit of processes (ulimit -u)");
    }
  }
  roster_.join(request);
}

void Scheduler::stop_unwanted_step() {
  if (cancel_ && std::ranges::all_of(step_->parts(), [](const Step::Part& part) { return part.sequence->request->closed(); }))
    cancel_->request();
}

// ---------------------------------------------------------------- the engine thread
void Scheduler::work() {
  os::name_this_thread("pumice-engine");
  os::expect_work_on_this_thread();
  Lock lock(mutex_);
  while (!quit_) {
    try {
      work_.raised = false;
      choose_answers(lock);
      end_late();
      const bool computes = plan();
      if (computes) {
        run_step(lock);
        news_.let_read(lock, roster_.requests());
      }
      let_go(lock);
      if (!computes) sleep(lock);
    } catch (...) {  // for example, if there is no memory for the bookkeeping
      if (!lock.owns_lock()) lock.lock();
      fail_all(lock, std::current_exception());
    }
  }
}

// Ends all requests with an error. If there is no memory even for this, tries again until it succeeds, because the engine thread must not
// end. Always releases the lock for some milliseconds, so that callers can take it to read the error. Without this pause they could not,
// because each step fails at once as long as there is no memory.
void Scheduler::fail_all(Lock& lock, const std::exception_ptr& error) {
  for (bool told = false; !told;) {
    try {
      roster_.fail_all(error);
      step_is_over();
      told = true;
    } catch (...) {
    }
    if (work_.wake->wait_for(lock, std::chrono::milliseconds(10), [this] { return quit_; })) return;
  }
}

// Chooses tokens for the sequences whose callers have answered with logits. Releases the lock while tokens are chosen, because grammar
// masks and sampling may take 0.2 s. Meanwhile the sequences are marked as in a step, so that nobody changes the data that
// Answers::choose() reads.
void Scheduler::choose_answers(Lock& lock) {
  if (!answers_->gather(roster_.requests())) return;
  lock.unlock();
  answers_->choose();
  lock.lock();
  commit_.answers(answers_->parts());
  step_is_over();
}

// Ends requests whose deadline has passed, even if they wait for pages or for their reader. The callers still get the tokens chosen so far.
void Scheduler::end_late() {
  for (const auto& request : roster_.late(Clock::now())) {
    for (Sequence& s : request->sequences)
      if (!s.ended()) roster_.end(s, Finish::deadline);
    news_.tell(*request);
  }
}

// Sleeps until there is work, or until the first deadline.
void Scheduler::sleep(Lock& lock) {
  const auto roused = [this] { return quit_ || work_.raised; };
  const auto deadline = roster_.deadline();
  if (deadline == Clock::time_point::max()) {
    work_.wake->wait(lock, roused);
  } else {
    work_.wake->wait_until(lock, deadline, roused);
  }
}

bool Scheduler::plan() {
  roster_.remove_ended();
  const Plan plan = admission_.plan(roster_.requests(), limits_);
  counts_.preempted += plan.preempted;
  for (const auto& [sequence, error] : plan.failed) {
    roster_.fail(*sequence->request, error);
    news_.tell(*sequence->request);
  }
  for (const Sequence* sequence : plan.held) news_.tell(*sequence->request);
  step_->assemble(plan);
  for (const Step::Part& part : step_->parts()) {
    Prompt& prompt = *part.sequence->prompt;
    part.sequence->in_step = Sequence::InStep::yes;
    plan_snapshots(part);
    if (part.samples) prompt.each_sharing(*part.sequence, [](Sequence& s) { s.in_step = Sequence::InStep::yes; });
  }
  return !step_->parts().empty();
}

// Takes states from the pool for the snapshots (snapshots.h) between the rows of a part. A snapshot after the part's last row is left out,
// because the step writes the state after this row in any case (PageTable::fresh()).
void Scheduler::plan_snapshots(const Step::Part& part) {
  if (!runtime_.pages->has_states()) return;
  Sequence& s = *part.sequence;
  std::vector<std::int64_t> tokens;
  for (std::int64_t end = (s.computed / kPageTokens + 1) * kPageTokens; end < s.computed + part.rows; end += kPageTokens)
    if (is_snapshot(s, end)) tokens.push_back(end);
  runtime_.pages->plan_snapshots(s.table, tokens);
}

void Scheduler::run_step(Lock& lock) {
  const auto start = Clock::now();
  for (const Step::Part& part : step_->parts()) {
    const Sequence& s = *part.sequence;
    if (!std::exchange(s.prompt->begun, true)) s.request->timings.queued_seconds = s.request->seconds_to(start);
  }
  cancel_.emplace();
  std::exception_ptr failure;
  bool ran = false, lost = false;
  lock.unlock();
  try {
    ran = step_->run(runtime_, *cancel_);
  } catch (const Error& error) {
    lost = error.kind() == ErrorKind::device_lost;
    // A step is cancelled only when all its requests are closed, so nobody needs that error.
    if (error.kind() != ErrorKind::cancelled) failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  cancel_.reset();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  counts_.busy_seconds += seconds;
  counts_.rows = step_->rows();
  ++counts_.steps;
  if (ran) commit_.step(*step_, seconds);
  if (lost) {
    roster_.fail_all(failure);
  } else if (failure) {
    for (const Step::Part& part : step_->parts()) roster_.fail(*part.sequence->request, failure);
  }
  step_is_over();
}

// Must be called when no step reads the sequences any more. Ends the sequences that are marked as leaving, and tells callers the news.
void Scheduler::step_is_over() {
  cancel_.reset();
  step_->parts().clear();
  roster_.step_is_over();
  for (const auto& request : roster_.requests()) news_.tell(*request);
}

// Releases pages of draft models, and destroys requests that have left the batch. This scheduler's lock is not held during this work,
// because releasing the pages takes locks of the draft models, and a request may be the last owner of its draft model.
void Scheduler::let_go(Lock& lock) {
  std::vector<std::unique_ptr<Drafted>> drafted = roster_.take_drafted();
  Requests gone = roster_.take_gone();
  if (drafted.empty() && gone.empty()) return;
  lock.unlock();
  for (const auto& each : drafted) each->drafter->release(*each);
  drafted.clear();
  gone.clear();
  lock.lock();
}

// ---------------------------------------------------------------- after a fork
// Must be called in the child of a fork. Releases no pages and destroys no requests, because this would need locks of other objects, which
// the forking thread still holds.
void Scheduler::forget_parent() {
  (void)thread_.release();
  (void)work_.wake.release();
  work_.wake = std::make_unique<Condition>();
  // step_ and answers_ are leaked, because the parent's engine thread may have been changing them when the process forked.
  (void)step_.release();
  (void)answers_.release();
  step_ = std::make_unique<Step>();
  answers_ = std::make_unique<Answers>();
  cancel_.reset();
  for (Requests left : {roster_.forget_parent(), news_.forget_parent()}) parents_.insert(parents_.end(), left.begin(), left.end());
}

}  // namespace pumice::engine
