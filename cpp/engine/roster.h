// The requests in the batch, and how sequences leave it. All of it under the scheduler's lock.
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

  // In the order in which steps serve them: the highest priority first, and equal ones in the order in which they came.
  const Requests& requests() const { return requests_; }
  void join(RequestState& request);
  void remove_ended();
  // In the child of a fork: the parent's requests, at rest. Their pages stay as they are, as other locks are still held then.
  Requests forget_parent();

  // When the first of the requests must end; and the requests that must have ended by now.
  Clock::time_point deadline() const;
  Requests late(Clock::time_point now) const;

  // Ends a sequence that no step reads: its pages become kept ones.
  void end(Sequence& sequence, Finish finish);
  // Ends it now, or with the step that reads it; it gives no more news.
  void drop(Sequence& sequence);
  void drop(RequestState& request);
  // Ends all sequences of a request for which nothing can be computed. The first error is the one that its caller gets.
  void fail(RequestState& request, std::exception_ptr error);
  void fail_all(const std::exception_ptr& error);
  // However a step ended: nothing reads its sequences any more, and those that were to leave with it end.
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
