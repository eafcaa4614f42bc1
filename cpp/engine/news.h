// Tells callers the news of their requests. The reader is a thread that waits for its own request (Request::wait), or one thread for all
// started requests (Scheduler::pump). The scheduler's lock is held in all of these functions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/lock_order.h"
#include "engine/request_state.h"
#include "engine/work_signal.h"

namespace pumice::engine {

// The news of one request, as pump() returns them.
struct RequestNews {
  std::uint64_t tag;
  std::vector<News> news;
  bool ended;  // nothing more will come; if an error ended the request, take() throws it
};

using Requests = std::vector<std::shared_ptr<RequestState>>;

class NewsDesk {
 public:
  // crowded: the device's threads occupy all processors of the process.
  NewsDesk(WorkSignal& work, bool crowded) : work_(work), crowded_(crowded) {}

  // If the request is ready, wakes the thread that waits for it, or the thread in pump().
  void tell(RequestState& request);
  // Takes the news of a request. They then count as read, so a sequence that was parked because of unread news may go on.
  std::vector<News> collect(RequestState& request);
  // Waits for news, for wake_pump(), or for max_ms. Unlocks before it returns, so that a request without another holder is destroyed
  // without the lock.
  std::vector<RequestNews> pump(SchedulerLock lock, double max_ms);
  void wake_pump();
  // The reader has handled its news and has come back for more.
  void has_read(Reader& reader);
  // Before a step: if the device's threads occupy all processors, waits at most 0.5 ms for the readers that were told news.
  void let_read(SchedulerLock& lock, const Requests& requests);
  // In the child of a fork: returns the parent's requests whose news are not told yet. Destroys nothing.
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
