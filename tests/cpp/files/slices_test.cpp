// Tests of the parts of tensors that threads make together and share.
#include "files/slices.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "patience.h"

namespace pumice::files {
namespace {

constexpr std::int64_t kJobs = 64;
const char tensor = 0;  // its address stands for a tensor

// Returns what writes `value` + index to byte `index` of a part.
Slices::Making bytes_from(std::uint8_t value) {
  return {.size = kJobs, .jobs = kJobs, .job = [value](std::int64_t index, std::uint8_t* bytes) {
            bytes[index] = static_cast<std::uint8_t>(value + index);
          }};
}

TEST(Slices, ThreadsShareTheJobsOfAPart) {
  Slices slices;
  std::array<std::atomic<int>, kJobs> done{};
  std::atomic<int> waiting = 0;
  // The first two jobs end only when both have begun: so two threads make the part.
  const Slices::Making making{.size = kJobs, .jobs = kJobs, .job = [&](std::int64_t index, std::uint8_t* bytes) {
                                if (index < 2) {
                                  waiting.fetch_add(1);
                                  while (waiting.load() < 2) std::this_thread::yield();
                                }
                                done[static_cast<std::size_t>(index)].fetch_add(1);
                                bytes[index] = static_cast<std::uint8_t>(index);
                              }};
  std::vector<Slices::Bytes> found(4);
  std::vector<std::thread> threads;
  for (Slices::Bytes& bytes : found) threads.emplace_back([&] { bytes = slices.of(&tensor, 0, making); });
  for (std::thread& thread : threads) thread.join();
  for (std::int64_t i = 0; i < kJobs; ++i) {
    EXPECT_EQ(done[static_cast<std::size_t>(i)].load(), 1) << i;
    for (const Slices::Bytes& bytes : found) EXPECT_EQ(bytes.get()[i], i);
  }
}

TEST(Slices, TheLastTwoPartsStay) {
  Slices slices;
  const Slices::Bytes first = slices.of(&tensor, 0, bytes_from(10));
  static_cast<void>(slices.of(&tensor, 1, bytes_from(20)));
  EXPECT_EQ(slices.of(&tensor, 0, bytes_from(30)).get()[1], 11);
  EXPECT_EQ(slices.of(&tensor, 1, bytes_from(30)).get()[1], 21);
  static_cast<void>(slices.of(&tensor, 2, bytes_from(40)));
  static_cast<void>(slices.of(&tensor, 3, bytes_from(50)));
  EXPECT_EQ(slices.of(&tensor, 0, bytes_from(30)).get()[1], 31);
  EXPECT_EQ(first.get()[1], 11);  // in use, so no later part has its memory
}

TEST(Slices, APartThatFailedIsMadeAnew) {
  Slices slices;
  std::atomic<int> waiting = 0, thrown = 0;
  const Slices::Making failing{.size = kJobs, .jobs = kJobs, .job = [&](std::int64_t index, std::uint8_t*) {
                                 if (index >= 2) return;
                                 waiting.fetch_add(1);
                                 while (waiting.load() < 2) std::this_thread::yield();
                                 if (index == 1) throw std::runtime_error("cannot be read");
                               }};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      try {
        static_cast<void>(slices.of(&tensor, 0, failing));
      } catch (const std::runtime_error& error) {
        if (error.what() == std::string("cannot be read")) thrown.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(thrown.load(), 2);
  EXPECT_EQ(slices.of(&tensor, 0, bytes_from(7)).get()[3], 10);
}

// The threads that make a part in the parent do not exist in the child, which would wait for them without end.
TEST(Slices, AChildMakesWhatAForkInterrupted) {
  Slices slices;
  std::atomic<bool> begun = false, go = false;
  std::uint8_t made = 0;
  std::thread maker([&] {
    const auto job = [&](std::int64_t, std::uint8_t* bytes) {
      begun.store(true);
      begun.notify_all();
      go.wait(false);
      bytes[0] = 1;
    };
    made = slices.of(&tensor, 0, {.size = 1, .jobs = 1, .job = job}).get()[0];
  });
  begun.wait(false);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(patience::kPatience.count());
    ::_exit(slices.of(&tensor, 0, bytes_from(5)).get()[1] == 6 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  go.store(true);
  go.notify_all();
  maker.join();
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace pumice::files
