#include "interruptible.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/error.h"
#include "engine/at_fork.h"
#include "gil.h"
#include "os/threads.h"

namespace py = pybind11;

namespace pumice::bindings {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(20);

// A thread that runs one piece of work after another. The thread is kept for later calls, because starting a thread takes a tenth of the
// time that a small model needs for a token.
class Worker {
 public:
  Worker() {
    std::thread([this] { loop(); }).detach();  // runs until the process ends, so it is never joined
  }

  void start(const std::function<void()>* work) {
    const std::lock_guard lock(mutex_);
    work_ = work;
    finished_ = false;
    wake_.notify_one();
  }

  // Waits until the work has ended, or until the timeout. Returns whether the work has ended.
  bool wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, timeout, [this] { return finished_; });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return finished_; });
  }

 private:
  void loop() {
    os::name_this_thread("pumice-call");
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return work_ != nullptr; });
      const auto* work = work_;
      lock.unlock();
      (*work)();  // the function that start() got catches all exceptions itself
      lock.lock();
      work_ = nullptr;
      finished_ = true;
      done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* work_ = nullptr;
  bool finished_ = false;
};

// The idle workers. Workers are never destroyed. The child of a fork drops them from the list, because their threads exist only in the
// parent.
class Workers {
 public:
  Worker* take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return new Worker;
    Worker* worker = idle_.back();
    idle_.pop_back();
    return worker;
  }
  void give(Worker* worker) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(worker);
  }

 private:
  std::mutex mutex_;
  std::vector<Worker*> idle_;
  const engine::AtFork at_fork_{{.before = [this] { mutex_.lock(); },
                                 .in_parent = [this] { mutex_.unlock(); },
                                 .in_child =
                                     [this] {
                                       idle_.clear();
                                       mutex_.unlock();
                                     }}};
};

Workers& workers() {
  static auto& all = *new Workers;
  return all;
}

// The ident of Python's main thread. If a program embeds Python, this need not be the first thread of the process.
unsigned long python_main_thread = 0;

bool on_main_thread() { return os::on_first_thread() || python_main_thread == PyThread_get_thread_ident(); }

}  // namespace

void find_main_thread() {
  python_main_thread = call(import_module("threading").attr("main_thread"), py::tuple()).attr("ident").cast<unsigned long>();
}

void interruptible(const std::function<void(const Cancel&)>& work, const std::function<void()>& poll, bool brief) {
  if (brief && !poll && on_main_thread()) {
    try {
      const WithoutGil released;
      return work(Cancel(Cancel::Clock::now() + kPollInterval));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::cancelled) throw;
    }
  }
  Cancel cancel;
  Worker* worker = nullptr;
  if (poll || on_main_thread()) {
    try {
      worker = workers().take();
    } catch (const std::system_error&) {
      // No thread could be started, for example because of a limit on processes. So the work runs on this thread, and Ctrl-C takes effect
      // only when the work has ended.
    }
  }
  if (!worker) {
    const WithoutGil released;
    work(cancel);
    return;
  }
  std::exception_ptr failure;
  const std::function<void()> guarded = [&] {
    try {
      work(cancel);
    } catch (...) {
      failure = std::current_exception();
    }
  };
  std::exception_ptr interrupt;
  {
    WithoutGil released;
    const pid_t process = getpid();
    worker->start(&guarded);
    while (!interrupt && !worker->wait(kPollInterval)) {
      released.with_gil([&] {
        try {
          check_signals();
          if (poll) poll();
          if (getpid() != process) {  // a signal handler or `poll` has forked, and the child does not have the helper thread
            fail(ErrorKind::forked_device, "this call was at work when the process forked; call again in the child");
          }
        } catch (const std::exception&) {
          interrupt = std::current_exception();
        }
      });
    }
    if (interrupt && getpid() == process) {
      cancel.request();
      worker->wait();
    }
    if (getpid() == process) workers().give(worker);
  }
  if (interrupt) std::rethrow_exception(interrupt);
  if (failure) std::rethrow_exception(failure);
}

void wait_interruptibly(double max_ms, const std::function<bool(double)>& wait) {
  const bool hears = on_main_thread();  // signal handlers run only on the main thread
  const double slice = std::chrono::duration<double, std::milli>(kPollInterval).count();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(std::min(max_ms, 1e9));
  const pid_t process = getpid();
  std::exception_ptr interrupt;
  {
    WithoutGil released;
    for (;;) {
      const double left = std::max(0.0, std::chrono::duration<double, std::milli>(end - std::chrono::steady_clock::now()).count());
      if (wait(hears ? std::min(left, slice) : left) || left == 0) break;
      if (!hears) continue;
      released.with_gil([&] {
        try {
          check_signals();
          if (getpid() != process)  // a signal handler has forked
            fail(ErrorKind::forked_device, "this call was at work when the process forked; call again in the child");
        } catch (const std::exception&) {
          interrupt = std::current_exception();
        }
      });
      if (interrupt) break;
    }
  }
  if (interrupt) std::rethrow_exception(interrupt);
}

}  // namespace pumice::bindings
