// What the running system gives this process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "os/files.h"
#include "os/libraries.h"
#include "os/limits.h"
#include "os/pages.h"
#include "os/threads.h"

namespace pumice::os {
namespace {

TEST(Limits, OfThisMachine) {
  EXPECT_GE(default_threads(), 1);
  EXPECT_LE(default_threads(), allowed_cpus());
  const Memory now = memory();
  EXPECT_GT(now.total, 64u << 20);
  EXPECT_GT(now.free, 0u);
  EXPECT_LE(now.free, now.total);
}

TEST(Threads, AreNamedAndJoined) {
  std::atomic<bool> ended{false};
  {
    const Thread thread([&] {
      name_this_thread("pumice-test");
      expect_work_on_this_thread();
      char name[16] = {};
      ::pthread_getname_np(::pthread_self(), name, sizeof name);
      EXPECT_STREQ(name, "pumice-test");
      EXPECT_FALSE(on_first_thread());
      ended = true;
    });
    EXPECT_TRUE(thread.joinable());
  }
  EXPECT_TRUE(ended.load());
  EXPECT_TRUE(on_first_thread());
}

TEST(Pages, SizesArePowersOfTwo) {
  const std::uint64_t page = page_bytes(), huge = huge_page_bytes();
  EXPECT_GE(page, 4096u);
  EXPECT_EQ(page & (page - 1), 0u);
  EXPECT_EQ(huge & (huge - 1), 0u);
  EXPECT_TRUE(huge == 0 || huge > page);
}

TEST(Files, SpaceIsReservedWithoutChangingTheSize) {
  const std::string path = testing::TempDir() + "pumice_os_" + std::to_string(::getpid());
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0) << std::strerror(errno);
  struct stat status;
  ASSERT_EQ(::fstat(file, &status), 0);
  EXPECT_GT(modified(status).tv_sec, 1'000'000'000);
  EXPECT_GE(changed(status).tv_sec, modified(status).tv_sec);
  if (reserve_space(file, 1 << 20) == 0) {
    ASSERT_EQ(::fstat(file, &status), 0);
    EXPECT_EQ(status.st_size, 0);
    EXPECT_GE(status.st_blocks, (1 << 20) / 512);
  } else {
    EXPECT_TRUE(errno == EOPNOTSUPP || errno == ENOSYS) << std::strerror(errno);
  }
  EXPECT_EQ(os::sync(file), 0);
  ::close(file);
  ::unlink(path.c_str());
}

TEST(Files, AFileIsNoMountPoint) {
  const std::string name = "pumice_os_mount_" + std::to_string(::getpid());
  const int folder = ::open(testing::TempDir().c_str(), kOpenFolder);
  ASSERT_GE(folder, 0);
  const int file = ::openat(folder, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  EXPECT_FALSE(is_mount_point(folder, name));
  ::unlinkat(folder, name.c_str(), 0);
  ::close(file);
  ::close(folder);
}

TEST(Threads, AClockCountsWorkAndNoSleep) {
  using std::chrono::milliseconds;
  EXPECT_EQ(ThreadClock().used().count(), 0);
  std::atomic<bool> worked{false}, ends{false};
  ThreadClock clock;
  std::promise<void> known;
  std::thread other([&] {
    clock = ThreadClock::of_this_thread();
    known.set_value();
    while (!worked) {
    }
    while (!ends) std::this_thread::sleep_for(milliseconds(1));
  });
  known.get_future().wait();
  while (clock.used() < milliseconds(5)) std::this_thread::sleep_for(milliseconds(1));
  worked = true;
  const auto before = clock.used();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_LT(clock.used() - before, milliseconds(90));
  ends = true;
  other.join();
}

TEST(Libraries, TheProgramIsThisOne) {
  EXPECT_EQ(program().filename(), "test_os");
  EXPECT_FALSE(vulkan_loader().names.empty());
}

}  // namespace
}  // namespace pumice::os
