// Tells callers the news of their requests: a thread that waits for its own request (Request::wait), or one thread for all started requests
// (Scheduler::pump). The scheduler's lock is held for all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/lock_order.h"
#include "engine/request_state.h"
#include "engine/work_signal.h"

namespace pumice::engine {

// The news of one request, as pump() gives them.
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

  // Wakes the thread that waits for the request, or the one in pump(), where the request is ready.
  void tell(RequestState& request);
  // Takes the news of a request. They count as read: a sequence that was parked because of them may go on.
  std::vector<News> collect(RequestState& request);
  // Waits for news, for wake_pump() or for max_ms. Unlocks before it returns: a request that has no other holder ends without the lock.
  std::vector<RequestNews> pump(SchedulerLock lock, double max_ms);
  void wake_pump();
  // The reader has handled its news and is back.
  void has_read(Reader& reader);
  // Before a step, where the device's threads have all processors: waits for the readers that were told news, 0.5 ms at most.
  void let_read(SchedulerLock& lock, const Requests& requests);
  // In the child of a fork: gives the parent's requests whose news are not told yet. Destroys nothing.
  Requests forget_parent();

 private:
  WorkSignal& work_;
  const bool crowded_;
  Requests queue_;            // requests with Delivery::queued
  std::int32_t pumping_ = 0;  // threads in pump()
  bool woken_ = false;
  Reader reader_;                                                    // the thread in pump()
  std::unique_ptr<Condition> told_ = std::make_unique<Condition>();  // threads in pump() wait for it
  std::unique_ptr<Condition> back_ = std::make_unique<Condition>();  // let_read() waits for it
};

}  // namespace pumice::engine
