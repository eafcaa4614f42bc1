// How tests treat time (tests/README.md, "Time in tests"): a slow or shared machine must not fail a test. A test waits long for what must
// happen, and asserts processor time, counted steps or the order of events. Wall times are printed; `make soak` asserts them, too.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

namespace pumice::patience {

using Clock = std::chrono::steady_clock;

// How long a test waits for what must happen. Nothing waits so long unless it is never to happen.
constexpr std::chrono::seconds kPatience{120};
constexpr double kPatienceMs = std::chrono::duration<double, std::milli>(kPatience).count();

// Waits until something is true. Returns false after kPatience.
template <typename True>
bool wait_until(True&& is_true) {
  const auto end = Clock::now() + kPatience;
  while (!is_true()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Waits for a child of a fork. Returns its exit code, or -1 if a signal ended it, as also happens to a child that hangs.
inline int exit_code(pid_t child) {
  int status = 0;
  const bool ended = wait_until([&] { return ::waitpid(child, &status, WNOHANG) != 0; });
  if (!ended) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Waits until a thread of this process, of which gettid() gives the number, has gone to sleep some times: one that waits in a loop with a
// limit, as those do that wait for a turn, is in that loop.
inline bool waits_in_a_loop(pid_t thread) {
  return wait_until([&] {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    const std::string key = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(key)) return std::stoi(line.substr(key.size())) >= 5;
    return false;
  });
}

// Whether wall times are asserted: on a machine that does nothing else (`make soak`).
inline bool asserts_walls() {
  const char* value = std::getenv("PUMICE_TEST_WALLS");
  return value && std::string_view(value) == "1";
}

inline double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Measures from when it is made: processor time of this thread and of the process, and wall time.
class Watch {
 public:
  double thread() const { return seconds_of(CLOCK_THREAD_CPUTIME_ID) - thread_; }
  double process() const { return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - process_; }
  double wall() const { return std::chrono::duration<double>(Clock::now() - wall_).count(); }

 private:
  double thread_ = seconds_of(CLOCK_THREAD_CPUTIME_ID), process_ = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  Clock::time_point wall_ = Clock::now();
};

}  // namespace pumice::patience
