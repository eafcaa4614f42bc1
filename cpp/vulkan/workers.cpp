#include "vulkan/workers.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "os/threads.h"

namespace pumice::vulkan {

void parallel(std::int64_t jobs, const std::function<void(std::int64_t)>& job, const Cancel& cancel) {
  constexpr std::int64_t kMostThreads = 16;
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto work = [&] {
    try {
      for (std::int64_t i; (i = next.fetch_add(1)) < jobs;) {
        cancel.check();
        job(i);
      }
    } catch (...) {
      next.store(jobs);
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    const std::int64_t threads = std::min({jobs, std::max<std::int64_t>(1, std::thread::hardware_concurrency()), kMostThreads});
    std::vector<os::Thread> team;
    try {
      for (std::int64_t t = 1; t < threads; ++t) team.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads can be started, so the running ones do all jobs
    }
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace pumice::vulkan
