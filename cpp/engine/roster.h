// Holds the requests in the batch, and ends their sequences. All functions must be called with the scheduler's lock held.
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

  // Returns the requests in the order in which steps serve them: by descending priority, and by arrival if priorities are equal.
  const Requests& requests() const { return requests_; }
  void join(RequestState& request);
  void remove_ended();
  // Must be called in the child of a fork. Removes the parent's requests from the batch and returns them. Releases no pages, because this
  // would need locks of other objects, which the forking thread still holds.
  Requests forget_parent();

  // deadline() returns the earliest deadline of all requests. late() returns the requests whose deadline has passed at time `now`.
  Clock::time_point deadline() const;
  Requests late(Clock::time_point now) const;

  // Ends a sequence that no running step uses. Its pages stay in the prefix cache until they are evicted.
  void end(Sequence& sequence, Finish finish);
  // Ends a sequence at once, or, if the running step uses the sequence, when that step is over. The reason to end (News::finish) is
  // Finish::none in both cases.
  void drop(Sequence& sequence);
  void drop(RequestState& request);
  // Ends the sequences of a request because of an error. If this is called several times, the request's caller gets the first error.
  void fail(RequestState& request, const std::exception_ptr& error);
  void fail_all(const std::exception_ptr& error);
  // Must be called after each step, even if the step failed. Ends the sequences that are marked as leaving.
  void step_is_over();
  // Returns the pages that ended sequences have in the caches of their draft models. The caller must release these pages without the
  // scheduler's lock. Otherwise the caller would take a lock of another model while it holds this lock, and a fork may take the two locks
  // in the other order. Both threads would then wait for each other for ever.
  std::vector<std::unique_ptr<Drafted>> take_drafted() { return std::exchange(drafted_, {}); }
  // Returns the requests that have left the batch. The caller must destroy them without the scheduler's lock, because a request may be the
  // last owner of its draft model.
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
