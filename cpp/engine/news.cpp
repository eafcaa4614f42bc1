#include "engine/news.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "core/error.h"

namespace pumice::engine {
namespace {

using Delivery = RequestState::Delivery;

// Maximum time that let_read() waits for readers. Python takes 0.05 to 0.3 ms to handle the news of a step.
constexpr auto kReading = std::chrono::microseconds(500);
// Number of steps that do not wait for a reader after the reader was late. So a reader that is always late costs 0.5 ms in 17 steps.
constexpr std::int32_t kSkipped = 16;

}  // namespace

void NewsDesk::tell(RequestState& request) {
  if (!request.ready()) return;
  if (request.waiting > 0) {
    request.news->notify_all();
    request.reader.reading = !request.ended();
  }
  if (request.delivery != Delivery::pumped) return;
  queue_.push_back(request.shared_from_this());  // may throw bad_alloc before anything changes; the next call of tell() tries again
  request.delivery = Delivery::queued;
  if (pumping_ == 0) return;
  told_->notify_one();
  reader_.reading = true;
}

std::vector<News> NewsDesk::collect(RequestState& request) {
  if (std::ranges::any_of(request.sequences, &Sequence::lags)) work_.raise();
  return request.collect();
}

std::vector<RequestNews> NewsDesk::pump(SchedulerLock lock, double max_ms) {
  require(max_ms >= 0, "max_ms must be at least 0, not ", max_ms);
  const std::chrono::duration<double, std::milli> most(std::min(max_ms, 1e9));
  has_read(reader_);
  ++pumping_;
  told_->wait_for(lock, most, [&] { return !queue_.empty() || woken_; });
  --pumping_;
  woken_ = false;
  Requests told;
  std::vector<RequestNews> all;
  told.reserve(queue_.size());
  all.reserve(queue_.size());
  for (const auto& request : queue_) {
    if (request->delivery == Delivery::queued) {  // otherwise the request was held or closed after it was queued
      RequestNews news{request->tag, {}, request->ended()};
      try {
        news.news = collect(*request);
      } catch (const std::bad_alloc&) {  // this request and those after it stay in the queue
        if (all.empty()) throw;
        break;
      }
      all.push_back(std::move(news));
      request->delivery = request->ended() ? Delivery::asked : Delivery::pumped;
    }
    told.push_back(request);
  }
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(told.size()));
  lock.unlock();
  return all;
}

void NewsDesk::wake_pump() {
  woken_ = true;
  told_->notify_all();
}

void NewsDesk::has_read(NewsReader& reader) {
  if (!std::exchange(reader.reading, false)) return;
  if (crowded_) back_->notify_one();
}

// Waits, before a step, until the readers have handled their news. Otherwise a reader would wake in the middle of the step and take a
// processor away from a thread of the device. The device's other threads would then wait for that thread's part of the work. With SmolLM2
// on two processors, this cost 14 % of the time per token. If a reader is late, the next kSkipped steps do not wait for that reader.
void NewsDesk::let_read(SchedulerLock& lock, const Requests& requests) {
  if (!crowded_) return;
  const auto awaited = [](const NewsReader& reader) { return reader.reading && reader.skip == 0; };
  back_->wait_for(lock, kReading,
                  [&] { return !awaited(reader_) && std::ranges::none_of(requests, [&](const auto& r) { return awaited(r->reader); }); });
  const auto look_back = [](NewsReader& reader) {
    if (reader.skip > 0) {
      --reader.skip;
    } else if (reader.reading) {
      reader.skip = kSkipped;
    }
  };
  look_back(reader_);
  for (const auto& request : requests) look_back(request->reader);
}

Requests NewsDesk::forget_parent() {
  (void)told_.release();
  (void)back_.release();
  told_ = std::make_unique<Condition>();
  back_ = std::make_unique<Condition>();
  pumping_ = 0;
  woken_ = false;
  reader_ = {};
  return std::exchange(queue_, {});
}

}  // namespace pumice::engine
