#include "engine/encode_queue.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/error.h"

namespace pumice::engine {
namespace {

constexpr std::int64_t kSmall = 8;         // micro-batches of a call that is run with others
constexpr double kTogetherSeconds = 0.1;   // of what is run together, so that nobody waits for long
constexpr auto kLookAgain = std::chrono::milliseconds(20);

}  // namespace

EncodeQueue::EncodeQueue(Runtime& runtime)
    : runtime_(runtime),
      at_fork_({.before = [this] { mutex_.lock(); },
                .in_parent = [this] { mutex_.unlock(); },
                .in_child = [this] { forget_parent(); mutex_.unlock(); }}) {}

// Calls are on the stacks of threads that are not here.
void EncodeQueue::forget_parent() {
  (void)changed_.release();
  (void)cancel_.release();
  changed_ = std::make_unique<std::condition_variable>();
  waiting_.clear();
  running_.clear();
}

std::int64_t EncodeQueue::runs() const {
  const std::lock_guard lock(mutex_);
  return runs_;
}

void EncodeQueue::encode(const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, const Cancel& cancel) {
  Call mine{.call = {.texts = texts, .out = out, .d = d, .normalize = normalize}, .cancel = &cancel};
  check_call(runtime_, mine.call);
  if (texts.offsets.back() - texts.offsets.front() > kSmall * runtime_.pipeline.batch_rows())
    return engine::encode(runtime_, texts, out, d, normalize, 0, {}, cancel);
  Lock lock(mutex_);
  waiting_.push_back(&mine);
  while (mine.state != Call::State::done) {
    if (cancel.requested() && mine.state == Call::State::waits) {
      std::erase(waiting_, &mine);
      cancel.check();
    }
    if (!running_.empty() && std::ranges::all_of(running_, [](const Call* each) { return each->cancel->requested(); })) cancel_->request();
    if (running_.empty()) {
      lead(lock);
    } else {
      changed_->wait_for(lock, kLookAgain);
    }
  }
  if (mine.call.error) std::rethrow_exception(mine.call.error);
}

// Runs who has waited longest, and all others that go with it.
void EncodeQueue::lead(Lock& lock) {
  const auto tokens = [](const Call* each) { return each->call.texts.offsets.back() - each->call.texts.offsets.front(); };
  const Texts& first = waiting_.front()->call.texts;
  const std::int64_t least = kSmall * runtime_.pipeline.batch_rows(),
                     fit = seconds_per_token_ > 0 ? static_cast<std::int64_t>(std::min(kTogetherSeconds / seconds_per_token_, 1e6)) : 0;
  std::int64_t room = std::max(least, fit);
  std::vector<EncodeCall*> calls;
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    const Texts& texts = (*each)->call.texts;
    const bool goes = texts.prompt == first.prompt && texts.types.empty() == first.types.empty() && tokens(*each) <= room;
    if (!goes) {
      ++each;
      continue;
    }
    room -= tokens(*each);
    (*each)->state = Call::State::runs;
    calls.push_back(&(*each)->call);
    running_.push_back(*each);
    each = waiting_.erase(each);
  }
  cancel_ = std::make_unique<Cancel>();
  ++runs_;
  std::int64_t all = 0;
  for (const Call* each : running_) all += tokens(each);
  const auto start = Cancel::Clock::now();
  std::exception_ptr failure;
  lock.unlock();
  try {
    encode_together(runtime_, calls, calls.size() == 1 ? *running_.front()->cancel : *cancel_);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (!failure && all > 0)
    seconds_per_token_ = std::chrono::duration<double>(Cancel::Clock::now() - start).count() / static_cast<double>(all);
  for (Call* each : running_) {
    if (failure && !each->call.error) each->call.error = failure;
    each->state = Call::State::done;
  }
  running_.clear();
  cancel_.reset();
  changed_->notify_all();
}

}  // namespace pumice::engine
