// Delivers the news of requests, such as new tokens, to the threads that read them. A reader is either a thread that waits for its own
// request (Request::wait), or the thread that reads the news of all started requests (Scheduler::pump). The caller of each function in this
// file holds the scheduler's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/lock_order.h"
#include "engine/request_state.h"
#include "engine/work_signal.h"

namespace pumice::engine {

// The news of one request, as pump() returns it.
struct RequestNews {
  std::uint64_t tag;
  std::vector<News> news;
  bool ended;  // no more news will come; if an error ended the request, Request::take() throws it
};

using Requests = std::vector<std::shared_ptr<RequestState>>;

class NewsDesk {
 public:
  // `crowded` is true if the device's threads occupy all processors of the process.
  NewsDesk(WorkSignal& work, bool crowded) : work_(work), crowded_(crowded) {}

  // If the request is ready (RequestState::ready), wakes the thread that waits for it, or queues the request for pump().
  void tell(RequestState& request);
  // Removes and returns the unread news of a request. The news then counts as read, so that a sequence that was parked because of too many
  // unread tokens can go on.
  std::vector<News> collect(RequestState& request);
  // Waits until a request has news, wake_pump() is called, or max_ms have passed. Returns the news of all queued requests. Unlocks `lock`
  // before it drops the queue's references to requests, because a request must not be destroyed while the lock is held.
  std::vector<RequestNews> pump(SchedulerLock lock, double max_ms);
  void wake_pump();
  // Must be called when a reader has handled its news and asks for more.
  void has_read(NewsReader& reader);
  // Must be called before a step. If the device's threads occupy all processors, waits until all readers that were woken have handled their
  // news, but at most 0.5 ms.
  void let_read(SchedulerLock& lock, const Requests& requests);
  // Must be called in the child of a fork. Empties the queue and returns its requests. Destroys no request, because the forking thread
  // still holds other locks.
  Requests forget_parent();

 private:
  WorkSignal& work_;
  const bool crowded_;
  Requests queue_;                                                   // requests whose news the next call of pump() returns
  std::int32_t pumping_ = 0;                                         // number of threads in pump()
  bool woken_ = false;                                               // true from wake_pump() until pump() has noticed it
  NewsReader reader_;                                                // the thread in pump()
  std::unique_ptr<Condition> told_ = std::make_unique<Condition>();  // wakes the threads in pump()
  std::unique_ptr<Condition> back_ = std::make_unique<Condition>();  // wakes the engine thread in let_read()
};

}  // namespace pumice::engine
