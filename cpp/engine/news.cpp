#include "engine/news.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace pumice::engine {
namespace {

using Delivery = RequestState::Delivery;

constexpr auto kReading = std::chrono::microseconds(500);  // for readers, before the next step

}  // namespace

void NewsDesk::tell(RequestState& request) {
  if (!request.ready()) return;
  if (request.waiting > 0) {
    request.news->notify_all();
    request.reader = {.reading = !request.ended(), .quick = request.reader.quick, .told_at = Clock::now()};
  }
  if (request.delivery != Delivery::pumped) return;
  request.delivery = Delivery::queued;
  queue_.push_back(request.shared_from_this());
  if (pumping_ == 0) return;
  told_->notify_one();
  reader_ = {.reading = true, .quick = reader_.quick, .told_at = Clock::now()};
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
  told.swap(queue_);
  std::vector<RequestNews> all;
  for (const auto& request : told) {
    if (request->delivery != Delivery::queued) continue;  // held, or closed
    all.push_back({request->tag, collect(*request), request->ended()});
    request->delivery = request->ended() ? Delivery::asked : Delivery::pumped;
  }
  lock.unlock();
  return all;
}

void NewsDesk::wake_pump() {
  woken_ = true;
  told_->notify_all();
}

void NewsDesk::has_read(Reader& reader) {
  if (!std::exchange(reader.reading, false)) return;
  reader.quick = Clock::now() - reader.told_at < kReading;
  if (crowded_) back_->notify_one();
}

// Where the device's threads have all cpus, a reader that wakes takes one away in the middle of a step, and all threads wait for the piece
// of work that it held (SmolLM2 on two cpus: 14 % of a token). So those that were back in a moment last time may read first.
void NewsDesk::let_read(SchedulerLock& lock, const Requests& requests) {
  if (!crowded_) return;
  const auto reads = [](const Reader& reader) { return reader.reading && reader.quick; };
  const bool all = back_->wait_for(
      lock, kReading, [&] { return !reads(reader_) && std::ranges::none_of(requests, [&](const auto& r) { return reads(r->reader); }); });
  if (all) return;
  for (const auto& request : requests)
    if (request->reader.reading) request->reader.quick = false;  // perhaps it never comes back
  if (reader_.reading) reader_.quick = false;
}

Requests NewsDesk::forget_parent() {
  (void)told_.release();
  (void)back_.release();
  told_ = std::make_unique<std::condition_variable>();
  back_ = std::make_unique<std::condition_variable>();
  pumping_ = 0;
  woken_ = false;
  reader_ = {};
  return std::exchange(queue_, {});
}

}  // namespace pumice::engine
