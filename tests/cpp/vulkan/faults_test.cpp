// Tests of failures of Vulkan: each Vulkan call in the life of a tiny model fails once, a device is lost, and a process is forked. A leak
// shows in the bytes that a device counts as allocated, and in messages of the validation layer if it is on (PUMICE_VULKAN_VALIDATION=1).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/devices.h"
#include "patience.h"
#include "vulkan/chosen_device.h"
#include "vulkan/device.h"
#include "vulkan/faulty_device.h"
#include "vulkan/pipelines.h"
#include "vulkan/tiny.h"
#include "vulkan/vulkan_backend.h"

namespace pumice::vulkan {
namespace {

std::optional<ErrorKind> kind_of(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    EXPECT_GT(std::string(error.what()).size(), 10u);
    return error.kind();
  }
}

// Runs `work` while `count` Vulkan calls, from number `call` on, fail with `code`. Returns the kind of the error, or nothing if there was
// none. `work` itself must check its results.
std::optional<ErrorKind> with_fault(std::int64_t call, std::int64_t count, VkResult code, const std::function<void()>& work) {
  faults().arm(call, count, code);
  const auto kind = kind_of(work);
  faults().disarm();
  if (kind) {
    EXPECT_EQ(*kind, kKinds.at(code)) << "call " << call << " ends as " << name(code);
  }
  return kind;
}

std::int64_t calls_of(const std::function<void()>& work) {
  const std::int64_t before = faults().calls();
  work();
  return faults().calls() - before;
}

// ---------------------------------------------------------------- every call
class EveryCall : public testing::TestWithParam<bool> {
 protected:
  void session() { EXPECT_TRUE(tiny::right(tiny::Session(*device_.backend()).both())); }

  FaultyDevice device_{[] {
    std::optional<tiny::Environment> staged;  // if set, the host does not see the device's memory
    if (GetParam()) staged.emplace("PUMICE_VULKAN_DISABLE", "unified");
    return Device::open(physical());
  }};
};

TEST_P(EveryCall, OfASessionFails) {
  session();  // makes the pipelines, so that later sessions do not
  const std::int64_t calls = calls_of([&] { session(); });
  EXPECT_GT(calls, 50);
  std::size_t errors = 0;
  const auto fails_at = [&](std::int64_t call, std::int64_t count, VkResult code) {
    const auto kind = with_fault(call, count, code, [&] { session(); });
    errors += kind.has_value();
    EXPECT_EQ(device_->allocated(), 0u) << "after call " << call << " ended as " << name(code);
    EXPECT_EQ(device_->lost(), kind == ErrorKind::device_lost);
    if (device_->lost()) {
      EXPECT_EQ(calls_of([&] { EXPECT_EQ(kind_of([&] { session(); }), ErrorKind::device_lost); }), 0) << "a lost device is asked no more";
      device_.renew();
    }
  };
  for (std::int64_t call = 0; call < calls; ++call) {
    fails_at(call, 1, VK_ERROR_OUT_OF_DEVICE_MEMORY);
    if (call % 5 == 0) fails_at(call, 1, VK_ERROR_OUT_OF_HOST_MEMORY);
    if (call % 5 == 1) fails_at(call, 1, VK_ERROR_INITIALIZATION_FAILED);
    if (call % 16 == 3) fails_at(call, 1, VK_ERROR_DEVICE_LOST);
    if (call % 10 == 2) session();  // the next session must be right
    if (HasFailure()) return;
  }
  session();
  // Nearly all of the failed calls must have given an error. Only one kind of failure may be made good: if there is no memory for a larger
  // slab, a second slab is allocated.
  EXPECT_GE(errors, static_cast<std::size_t>(calls));
}

TEST_P(EveryCall, AndThoseAfterItFail) {
  session();
  const std::int64_t calls = calls_of([&] { session(); });
  for (std::int64_t call = 0; call < calls; call += 7) {
    // If waiting for the device fails, its work may still be in flight. So waiting is tried again for a second.
    const auto kind = kind_of([&] {
      faults().arm(call, 30, VK_ERROR_OUT_OF_HOST_MEMORY);
      session();
    });
    faults().disarm();
    EXPECT_EQ(kind, ErrorKind::out_of_memory) << call;
    EXPECT_EQ(device_->allocated(), 0u) << call;
    EXPECT_FALSE(device_->lost());
    if (HasFailure()) return;
  }
  session();
}

INSTANTIATE_TEST_SUITE_P(Memory, EveryCall, testing::Values(false, true),
                         [](const auto& test) { return test.param ? "staged" : "direct"; });

// Covers the life of a device from opening to closing, including its pipelines and their cache. There is only one pipeline, so that each
// call can fail with each code in reasonable time.
TEST(EveryCallOfADevice, Fails) {
  const std::string folder = testing::TempDir() + "pumice-faults-cache";
  const tiny::Environment cache("PUMICE_CACHE_DIR", folder);
  Program program;
  program.name = "select";
  program.slots = {{Rows::tokens, 64}, {Rows::selected, 64}};
  program.ops = {Select{.in = {0, 0, 64}, .out = {1, 0, 64}}};
  program.input = 0, program.output = 1;
  const std::vector<float> in = cases::Random(3).normals(5 * 64);
  const std::vector<std::int32_t> selected = {1, 3};
  std::weak_ptr<Device> last;
  const auto life = [&] {
    const auto device = Device::open(physical());
    last = device;
    const auto backend = make_backend(device, 0);
    const auto weights = backend->pack({}, {}, {}, Cancel{});
    const auto executable = backend->prepare(program, weights, Compute::float32);
    const auto workspace = backend->make_workspace(Crew::team);
    std::vector<float> out(2 * 64);
    executable->run(*workspace, nullptr, {.rows = 5, .selected = selected}, {.in = in, .out = out}, Cancel{});
    EXPECT_TRUE(std::equal(out.begin(), out.begin() + 64, in.begin() + 64) && std::equal(out.begin() + 64, out.end(), in.begin() + 3 * 64));
  };
  const std::size_t messages = validation_messages().size();
  life();  // the first device of the process makes calls that later ones do not
  for (const bool cached : {false, true}) {
    const auto prepare = [&] {
      if (!cached) std::filesystem::remove_all(folder);
    };
    prepare();
    const std::int64_t calls = calls_of(life);
    EXPECT_GT(calls, 15);
    std::size_t errors = 0;
    for (std::int64_t call = 0; call < calls; ++call) {
      for (const auto& [code, kind] : kKinds) {
        prepare();
        errors += with_fault(call, 1, code, life).has_value();
        EXPECT_TRUE(last.expired());
      }
      prepare();
      life();
      if (HasFailure()) break;
    }
    // There are four codes for each call. Not every failure is an error: writing the cache file and waiting at the end may fail.
    EXPECT_GT(errors, static_cast<std::size_t>(3 * calls));
  }
  EXPECT_EQ(validation_messages().size(), messages);
  std::filesystem::remove_all(folder);
}

// Several threads make pipelines at once. If one of them fails, all must stop, and the pipelines that were made must be kept.
TEST(EveryCallOfADevice, WhilePipelinesAreMade) {
  std::int64_t all = 0;
  {
    const auto device = Device::open(physical());
    const auto backend = make_backend(device, 0);
    all = calls_of([&] { tiny::Session session(*backend); });
  }
  auto device = Device::open(physical());
  auto backend = make_backend(device, 0);
  for (std::int64_t call = 12; call < all; call += 9) {
    const auto kind = with_fault(call, 1, VK_ERROR_OUT_OF_DEVICE_MEMORY, [&] { tiny::Session session(*backend); });
    if (!kind) break;  // no call failed, because all pipelines had been made
    EXPECT_EQ(device->allocated(), 0u);
  }
  EXPECT_TRUE(tiny::right(tiny::Session(*backend).both()));
}

// ---------------------------------------------------------------- before there is a device
// EXPECT_EXIT runs in a child process, which has not opened Vulkan yet.
TEST(EveryCallOfTheInstanceDeathTest, Fails) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        bool ok = true;
        std::int64_t failed = 0;
        for (bool there = false; !there; ++failed) {
          for (const auto& [code, kind] : kKinds) {
            faults().arm(failed, 1, code);
            try {
              Instance::get();
              there = true;
            } catch (const Error& error) {
              if (error.kind() != kind) {
                std::cerr << "call " << failed << " as " << name(code) << ": " << error.what() << '\n';
                ok = false;
              }
            }
            faults().disarm();
            if (there) break;
          }
        }
        ok = ok && failed > 7 && make_backend(chosen_index())->info().usable && validation_messages().empty();
        for (const std::string& message : validation_messages()) std::cerr << message << '\n';
        std::cerr << failed << " calls\n";
        ::_exit(ok ? 0 : 1);
      },
      testing::ExitedWithCode(0), "calls");
}

// ---------------------------------------------------------------- lost
TEST(ALostDevice, IsAskedNoMoreAndAnotherOneWorks) {
  const auto device = Device::open(physical());
  const auto backend = make_backend(device, 0);
  tiny::Session session(*backend);
  EXPECT_TRUE(backend->info().usable);
  session.prefill();
  // From now on the caches have grown and the commands of decode() are recorded, so its last call waits for the device.
  session.decode();
  EXPECT_EQ(with_fault(calls_of([&] { session.decode(); }) - 1, 1, VK_ERROR_DEVICE_LOST, [&] { session.decode(); }),
            ErrorKind::device_lost);
  EXPECT_TRUE(device->lost());
  EXPECT_FALSE(backend->info().usable);
  EXPECT_NE(backend->info().why_not.find("lost"), std::string::npos);
  const std::int64_t before = faults().calls();
  EXPECT_EQ(kind_of([&] { session.decode(); }), ErrorKind::device_lost);
  EXPECT_EQ(kind_of([&] { session.prefill(); }), ErrorKind::device_lost);
  EXPECT_EQ(kind_of([&] { session.caches().reserve(100); }), ErrorKind::device_lost);
  EXPECT_EQ(kind_of([&] { session.caches().copy_page(0, 1); }), ErrorKind::device_lost);
  EXPECT_EQ(kind_of([&] { tiny::Session another(*backend); }), ErrorKind::device_lost);
  EXPECT_EQ(faults().calls(), before);

  EXPECT_TRUE(tiny::right(tiny::Session(*make_backend(chosen_index())).both()));
}

TEST(ALostDevice, IsNotGivenToTheNextModel) {
  const auto& room = engine::gpu_room();
  const auto held = room.open(chosen_index());
  EXPECT_EQ(room.open(chosen_index()), held);  // models share a device
  tiny::Session session(*held);
  session.prefill();
  EXPECT_EQ(with_fault(0, 1, VK_ERROR_DEVICE_LOST, [&] { session.decode(); }), ErrorKind::device_lost);
  const auto next = room.open(chosen_index());
  EXPECT_NE(next, held);
  EXPECT_EQ(room.open(chosen_index()), next);
  EXPECT_TRUE(tiny::right(tiny::Session(*next).both()));
}

// ---------------------------------------------------------------- fork
TEST(AForkedChild, TouchesNothingAndIsToldSo) {
  auto device = Device::open(physical());
  auto backend = make_backend(device, 0);
  auto session = std::make_unique<tiny::Session>(*backend);
  const std::vector<float> begin = session->prefill();
  pid_t child = 0;
  {
    // Another thread may hold the device's locks at the fork. In the child they then stay locked forever.
    const std::lock_guard turn(device->turn());
    child = ::fork();
    if (child == 0) {
      ::alarm(patience::kPatience.count());
      const std::int64_t calls = faults().calls(), others = faults().others();
      int wrong = 0, step = 0;
      const auto forked = [&](const std::function<void()>& work) {
        ++step;
        try {
          work();
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::forked_device && std::string(error.what()).find("spawn") != std::string::npos) return;
          std::fprintf(stderr, "%s\n", error.what());
        }
        std::fprintf(stderr, "step %d\n", step);
        ++wrong;
      };
      forked([&] { session->decode(); });
      forked([&] { session->prefill(); });
      forked([&] { session->caches().reserve(50); });
      forked([&] { session->caches().copy_page(0, 1); });
      forked([&] { tiny::Session another(*backend); });
      forked([&] { backend->make_caches(tiny::program(), KvFormat::f16)->reserve(1); });
      forked([&] { static_cast<void>(backend->info()); });
      forked([&] { backend->foresee(tiny::program(), tiny::weights(), Compute::automatic, Cancel{}); });
      forked([&] { Device::open(device->physical()); });
      forked([&] { make_backend(chosen_index()); });
      const std::vector<DeviceInfo> list = devices();
      wrong += list.size() != 1 || list[0].usable || list[0].why_not.find("forked") == std::string::npos;
      session.reset();
      backend.reset();
      wrong += device.use_count() != 1;
      device.reset();
      wrong += faults().calls() != calls || faults().others() != others;
      ::_exit(wrong);
    }
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(tiny::right_end(session->decode()));  // the parent's device still works
}

}  // namespace
}  // namespace pumice::vulkan
