// How news of requests reach those who read them: a thread that waits for its own request (Request::wait), or one thread that hears of
// all started requests (Scheduler::pump). All of it under the scheduler's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/lock_order.h"
#include "engine/request_state.h"
#include "engine/work_signal.h"

namespace pumice::engine {

// What pump() tells of a request.
struct RequestNews {
  std::uint64_t tag;
  std::vector<News> news;
  bool ended;  // nothing more will come; where an error ended it, take() throws it
};

using Requests = std::vector<std::shared_ptr<RequestState>>;

class NewsDesk {
 public:
  // crowded: the device's threads have all processors of the process.
  NewsDesk(WorkSignal& work, bool crowded) : work_(work), crowded_(crowded) {}

  // Where the request is ready: its waiting thread, or the next pump(), is told.
  void tell(RequestState& request);
  // The news of a request, which count as read; a sequence that was parked for them may go on.
  std::vector<News> collect(RequestState& request);
  // Waits for news, for wake_pump() or for max_ms. Gives the lock back, as the last holder of a request may let it go.
  std::vector<RequestNews> pump(SchedulerLock lock, double max_ms);
  void wake_pump();
  // The reader's caller is back, and has handled what it was told.
  void has_read(Reader& reader);
  // Before a step, where the device's threads have all processors: waits for the readers that were told news, 0.5 ms at most.
  void let_read(SchedulerLock& lock, const Requests& requests);
  // In the child of a fork: requests of the parent that were to be told. Nothing is destroyed.
  Requests forget_parent();

 private:
  WorkSignal& work_;
  const bool crowded_;
  Requests queue_;            // with Delivery::queued
  std::int32_t pumping_ = 0;  // threads in pump()
  bool woken_ = false;
  Reader reader_;                                                    // the thread in pump()
  std::unique_ptr<Condition> told_ = std::make_unique<Condition>();  // threads in pump() wait for it
  std::unique_ptr<Condition> back_ = std::make_unique<Condition>();  // let_read() waits for it
};

}  // namespace pumice::engine
