// The requests in the batch, and the ways in which sequences leave it. The scheduler's lock is held for all of it.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "engine/news.h"
#include "engine/request_state.h"
#include "engine/work_signal.h"

namespace pumice::engine {

class Roster {
 public:
  Roster(PagePool* pages, WorkSignal& work) : pages_(pages), work_(work) {}

  // In the order in which steps serve them: by falling priority, then in the order in which they came.
  const Requests& requests() const { return requests_; }
  void join(RequestState& request);
  void remove_ended();
  // In the child of a fork: takes the parent's requests out of the batch. Their pages stay as they are, because the locks of other objects
  // are still held then.
  Requests forget_parent();

  // When the first of the requests must end; and the requests that must have ended by now.
  Clock::time_point deadline() const;
  Requests late(Clock::time_point now) const;

  // Ends a sequence that no step reads: its pages become kept ones.
  void end(Sequence& sequence, Finish finish);
  // Ends a sequence without news: now, or with the step that reads it.
  void drop(Sequence& sequence);
  void drop(RequestState& request);
  // Ends all sequences of a request with an error. Its caller gets the first error.
  void fail(RequestState& request, const std::exception_ptr& error);
  void fail_all(const std::exception_ptr& error);
  // After each step, also one that failed: sequences that were marked as leaving end.
  void step_is_over();
  // Guessing models' pages of sequences that have ended, to be given back without the scheduler's lock: other models' locks are never taken
  // under it, as a fork takes them in the order of the models' making.
  std::vector<std::unique_ptr<Drafted>> take_drafted() { return std::exchange(drafted_, {}); }
  // Requests that have left, to be destroyed without the lock: each may be the last holder of a model that guesses for it.
  Requests take_gone() { return std::exchange(gone_, {}); }
  void let_go(Requests requests) { gone_.insert(gone_.end(), requests.begin(), requests.end()); }

 private:
  void revive(RequestState& request);
  void give_up_drafted(Sequence& sequence);

  PagePool* const pages_;
  WorkSignal& work_;
  Requests requests_, gone_;
  std::vector<std::unique_ptr<Drafted>> drafted_;
};

}  // namespace pumice::engine
