#include "engine/encode_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "core/error.h"

namespace pumice::engine {
namespace {

constexpr std::int64_t kSmall = 8;  // a call is small if its tokens fit into this many micro-batches; other calls run by themselves
// Intended maximum duration of a run of several calls, in seconds. Calls that arrive during the run wait for its end.
constexpr double kTogetherSeconds = 0.1;
constexpr auto kLookAgain = std::chrono::milliseconds(20);  // time between two checks for cancelled calls

}  // namespace

EncodeQueue::EncodeQueue(Runtime& runtime)
    : runtime_(runtime),
      at_fork_({.before = [this] { mutex_.lock(); },
                .in_parent = [this] { mutex_.unlock(); },
                .in_child =
                    [this] {
                      forget_parent();
                      mutex_.unlock();
                    }}) {}

// In the child of a fork, forgets all calls, because they are on the stacks of threads that the child does not have.
void EncodeQueue::forget_parent() {
  (void)changed_.release();
  (void)cancel_.release();
  changed_ = std::make_unique<Condition>();
  waiting_.clear();
  running_.clear();
}

std::int64_t EncodeQueue::runs() const {
  const std::lock_guard lock(mutex_);
  return runs_;
}

bool EncodeQueue::small(const Texts& texts) const {
  return texts.offsets.back() - texts.offsets.front() <= kSmall * runtime_.pipeline.batch_rows();
}

void EncodeQueue::encode(const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, const Cancel& cancel) {
  EncodeCall call{.texts = texts, .out = out, .d = d, .normalize = normalize};
  const Cancel* const cancels[] = {&cancel};
  encode({&call, 1}, cancels);
  if (call.error) std::rethrow_exception(call.error);
}

void EncodeQueue::encode(std::span<EncodeCall> calls, std::span<const Cancel* const> cancels) {
  std::vector<Call> mine;
  mine.reserve(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EncodeCall& call = calls[i];
    try {
      check_call(runtime_, call);
      if (small(call.texts)) {
        mine.push_back({.call = call, .cancel = cancels[i]});
      } else {
        engine::encode(runtime_, call.texts, call.out, call.d, call.normalize, 0, {}, *cancels[i]);
      }
    } catch (...) {
      call.error = std::current_exception();
    }
  }
  if (!mine.empty()) wait_for(mine);
}

void EncodeQueue::wait_for(std::span<Call> mine) {
  const auto leave = [this](Call& call, std::exception_ptr error) {
    std::erase(waiting_, &call);
    runtime_.encode_counts->wait(-1);
    call.state = Call::State::done;
    call.call.error = std::move(error);
  };
  Lock lock(mutex_);
  runtime_.encode_counts->wait(static_cast<std::int64_t>(mine.size()));
  try {
    for (Call& call : mine) waiting_.push_back(&call);
    while (std::ranges::any_of(mine, [](const Call& call) { return call.state != Call::State::done; })) {
      for (Call& call : mine) {
        if (call.state != Call::State::waits || !call.cancel->requested()) continue;
        try {
          call.cancel->check();
        } catch (...) {
          leave(call, std::current_exception());
        }
      }
      if (!running_.empty() && std::ranges::all_of(running_, [](const Call* each) { return each->cancel->requested(); }))
        cancel_->request();
      if (!running_.empty()) {
        changed_->wait_for(lock, kLookAgain);
      } else if (!waiting_.empty()) {
        lead(lock);
      }
    }
  } catch (...) {  // push_back() or lead() had no memory; lead() throws before it changes anything, so none of these calls runs
    for (Call& call : mine)
      if (call.state == Call::State::waits) leave(call, std::current_exception());
  }
}

// Runs the call that has waited longest, together with all waiting calls that fit into its run. Throws bad_alloc before it has changed
// anything.
void EncodeQueue::lead(Lock& lock) {
  std::vector<EncodeCall*> calls;
  std::vector<const Cancel*> cancels;
  calls.reserve(waiting_.size());
  cancels.reserve(waiting_.size());
  running_.reserve(waiting_.size());
  cancel_ = std::make_unique<Cancel>();
  const auto tokens = [](const Call* each) { return each->call.texts.offsets.back() - each->call.texts.offsets.front(); };
  const Texts& first = waiting_.front()->call.texts;
  const std::int64_t least = kSmall * runtime_.pipeline.batch_rows(),
                     fit = seconds_per_token_ > 0 ? static_cast<std::int64_t>(std::min(kTogetherSeconds / seconds_per_token_, 1e6)) : 0;
  std::int64_t room = std::max(least, fit), all = 0;
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    const Texts& texts = (*each)->call.texts;
    const bool goes = texts.prompt == first.prompt && texts.types.empty() == first.types.empty() && tokens(*each) <= room;
    if (!goes) {
      ++each;
      continue;
    }
    room -= tokens(*each);
    all += tokens(*each);
    (*each)->state = Call::State::runs;
    calls.push_back(&(*each)->call);
    cancels.push_back((*each)->cancel);
    running_.push_back(*each);
    each = waiting_.erase(each);
  }
  ++runs_;
  const auto start = Cancel::Clock::now();
  std::exception_ptr failure;
  lock.unlock();
  try {
    EncodeCounts::Turn turn(*runtime_.encode_counts, std::move(cancels));
    encode_together(runtime_, calls, turn, calls.size() == 1 ? *running_.front()->cancel : *cancel_);
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
