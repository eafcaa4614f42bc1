// The requests in the batch, and the ways in which sequences leave it. The scheduler's lock is held in all of these functions.
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

  // The requests in the order in which steps serve them: by falling priority, then in the order in which they came.
  const Requests& requests() const { return requests_; }
  void join(RequestState& request);
  void remove_ended();
  // In the child of a fork: takes the parent's requests out of the batch and returns them. Leaves their pages as they are, because the
  // locks of other objects are still held at that moment.
  Requests forget_parent();

  // deadline() is the first moment at which a request must end; late() returns the requests whose deadline has passed.
  Clock::time_point deadline() const;
  Requests late(Clock::time_point now) const;

  // Ends a sequence that no step uses. Its pages are kept for the prefix cache.
  void end(Sequence& sequence, Finish finish);
  // Ends a sequence without telling news: at once, or when the step that uses it is over.
  void drop(Sequence& sequence);
  void drop(RequestState& request);
  // Ends all sequences of a request with an error. Its caller gets the first error.
  void fail(RequestState& request, const std::exception_ptr& error);
  void fail_all(const std::exception_ptr& error);
  // Called after each step, also a failed one: ends the sequences that are marked as leaving.
  void step_is_over();
  // Returns the pages that sequences, now ended, held in guessing models. The caller gives them back without the scheduler's lock: another
  // model's lock is never taken under it, because a fork takes the locks in an order that depends on when the models were made.
  std::vector<std::unique_ptr<Drafted>> take_drafted() { return std::exchange(drafted_, {}); }
  // Returns requests that have left, for the caller to destroy without the lock: each may be the last holder of a model that guesses for
  // it.
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
