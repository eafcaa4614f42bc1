// Divides a phase's tasks among the threads of the team. A share is the range of tasks that a thread has not yet started. A thread takes
// tasks from the front of its own share, so that it reads weights in order and the hardware prefetcher need not start again. When a
// thread's own share is empty, the thread takes tasks from the back of other threads' shares. The team (team.h) only counts how many tasks
// have been claimed. After each claim, the thread calls take(), which chooses the task.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace pumice::cpu {

class Shares {
 public:
  explicit Shares(int threads) : shares_(static_cast<std::size_t>(threads)) {}

  // Divides tasks [0, tasks) into even shares. `tasks` must be below 2^32. Called only between phases.
  void deal(std::int64_t tasks) {
    const auto threads = static_cast<std::int64_t>(shares_.size());
    for (std::int64_t t = 0; t < threads; ++t) {
      shares_[static_cast<std::size_t>(t)].left.store(share(tasks * t / threads, tasks * (t + 1) / threads), std::memory_order_relaxed);
    }
  }

  // Returns a task that no other claim has taken. One look at each share is enough, because shares only shrink and there are as many tasks
  // as claims.
  std::int64_t take(int thread) {
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      std::atomic<std::uint64_t>& left = shares_[(static_cast<std::size_t>(thread) + i) % shares_.size()].left;
      std::uint64_t now = left.load(std::memory_order_relaxed);
      while (first_of(now) < end_of(now)) {
        const std::uint64_t rest = i == 0 ? share(first_of(now) + 1, end_of(now)) : share(first_of(now), end_of(now) - 1);
        if (left.compare_exchange_weak(now, rest, std::memory_order_relaxed)) return i == 0 ? first_of(now) : end_of(now) - 1;
      }
    }
    return -1;  // reached only if there are more claims than tasks
  }

 private:
  static std::uint64_t share(std::int64_t first, std::int64_t end) {
    return static_cast<std::uint64_t>(end) << 32 | static_cast<std::uint64_t>(first);
  }
  static std::int64_t first_of(std::uint64_t share) { return static_cast<std::int64_t>(share & 0xffffffffu); }
  static std::int64_t end_of(std::uint64_t share) { return static_cast<std::int64_t>(share >> 32); }

  struct alignas(128) Share {  // each share has its own cache lines
    std::atomic<std::uint64_t> left{0};
  };
  std::vector<Share> shares_;
};

}  // namespace pumice::cpu
