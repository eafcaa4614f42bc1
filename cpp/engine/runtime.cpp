#include "engine/runtime.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace pumice::engine {

RunSpaces::RunSpaces(const Pipeline& pipeline)
    : pipeline_(pipeline),
      returned_(std::make_unique<Condition>()),
      at_fork_({.before = [this] { mutex_.lock(); },
                .in_parent = [this] { mutex_.unlock(); },
                .in_child =
                    [this] {
                      forget_parent();
                      mutex_.unlock();
                    }}) {
  // Allocates the memory now, so that put_back() cannot fail.
  for (Shelf* each : {&team_, &solo_}) each->idle.reserve(static_cast<std::size_t>(each->limit));
}

// Must be called in the child of a fork. Forgets the spaces in use and the waiting calls, because they belong to threads that the child
// does not have. The condition variable is leaked, because a condition variable with waiters must not be destroyed.
void RunSpaces::forget_parent() {
  (void)returned_.release();
  returned_ = std::make_unique<Condition>();
  for (Shelf* each : {&team_, &solo_}) {
    each->made = static_cast<int>(each->idle.size());
    each->queue.clear();
  }
}

RunSpaces::Lease RunSpaces::take(Crew crew, const Cancel& cancel) {
  Shelf& from = shelf(crew);
  Set set;
  {
    std::unique_lock lock(mutex_);
    const int me = 0;  // the address of this variable is the call's entry in the queue
    from.queue.push_back(&me);
    const auto my_turn = [&] { return from.queue.front() == &me && (!from.idle.empty() || from.made < from.limit); };
    while (!returned_->wait_for(lock, std::chrono::milliseconds(20), my_turn) && !cancel.requested()) {
    }
    const bool mine = my_turn() && !cancel.requested();
    from.queue.erase(std::find(from.queue.begin(), from.queue.end(), &me));
    returned_->notify_all();
    if (!mine) cancel.check();
    if (!from.idle.empty()) {
      set = std::move(from.idle.back());
      from.idle.pop_back();
    } else {
      ++from.made;
    }
  }
  if (set.empty()) {
    try {
      const int spaces = crew == Crew::team ? 1 : std::max(1, pipeline_.narrowest().workers());
      for (int i = 0; i < spaces; ++i) set.push_back(pipeline_.make_space(crew));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      --from.made;
      returned_->notify_all();
      throw;
    }
  }
  return Lease(*this, crew, std::move(set));
}

void RunSpaces::put_back(Crew crew, Set set) {
  const std::lock_guard lock(mutex_);
  shelf(crew).idle.push_back(std::move(set));
  returned_->notify_all();
}

std::int32_t Pace::rows() const {
  const float seconds = seconds_per_row_.load(std::memory_order_relaxed);
  if (seconds <= 0) return std::min(least_, most());
  const auto wanted = static_cast<std::int32_t>(std::min(0.4f / seconds, float{kPlannedRows}));
  return std::min(std::clamp(wanted / 32 * 32, least_, kPlannedRows), most());
}

std::int32_t Pace::rows_within(double seconds, std::int64_t least) const {
  const float per_row = seconds_per_row_.load(std::memory_order_relaxed);
  const std::int64_t wanted = per_row <= 0 ? 32 : static_cast<std::int64_t>(std::min(seconds / per_row, double{kPlannedRows}));
  return static_cast<std::int32_t>(std::min<std::int64_t>(std::max(wanted, least), most()));
}

void Pace::measured(std::int32_t rows, double seconds) {
  if (rows >= 32) seconds_per_row_.store(static_cast<float>(seconds / rows), std::memory_order_relaxed);
}

void Pace::measured_heads(std::int32_t rows, double seconds) {
  if (rows >= 8) head_seconds_per_row_.store(static_cast<float>(seconds / rows), std::memory_order_relaxed);
}

double Pace::text_price() const {
  const float body = seconds_per_row_.load(std::memory_order_relaxed), head = head_seconds_per_row_.load(std::memory_order_relaxed);
  return body > 0 && head > 0 ? 1 + head / body : 2;
}

void Pace::too_many(std::int32_t rows) {
  std::int32_t most = most_.load(std::memory_order_relaxed);
  const std::int32_t half = std::max(1, rows / 2);
  while (half < most && !most_.compare_exchange_weak(most, half, std::memory_order_relaxed)) {
  }
}

bool Runtime::body(RunSpace& space, const Batch& batch, std::span<float> out, const Cancel& cancel) {
  const auto start = std::chrono::steady_clock::now();
  try {
    pipeline.body(space, &pages->caches(), batch, out, cancel);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_device_memory || batch.rows == 1) throw;
    pace.too_many(batch.rows);
    return false;
  }
  pace.measured(batch.rows, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return true;
}

std::int64_t Runtime::rope_stage(std::int64_t length) const {
  // Returns the sum of the stages of all ropes. If two lengths have the same sum, each rope has the same stage for both lengths, because no
  // rope's stage is lower for a longer text.
  std::int64_t sum = 0;
  for (const RopeTable& rope : ropes) sum += rope.stage(length);
  return sum;
}

bool Runtime::rope_outgrown(std::int64_t length, std::int64_t longer) const {
  return std::any_of(ropes.begin(), ropes.end(),
                     [&](const RopeTable& rope) { return !rope.long_inv_freq.empty() && rope.stage(length) != rope.stage(longer); });
}

void Runtime::check_ids(std::span<const std::int32_t> ids, const char* what, std::int64_t index) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab)
      fail(ErrorKind::invalid_argument, what, " ", index, ": token ", i, " has id ", ids[i], "; ids of this model are 0 to ", vocab - 1);
  }
}

std::int32_t rows_of_mixture(std::int32_t experts, std::int32_t chosen) {
  constexpr std::int64_t kRowsOfExpert = 16;
  return static_cast<std::int32_t>(std::min<std::int64_t>((kRowsOfExpert * experts + chosen - 1) / chosen, kPlannedRows));
}

std::int32_t head_rows(std::int32_t vocab) { return std::clamp((std::int32_t{16} << 20) / 4 / std::max(1, vocab), 1, 128); }

}  // namespace pumice::engine
