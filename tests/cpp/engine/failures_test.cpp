// The Nth allocation and the Nth read of a file fail, for every N in the life of a small model: open, load, encode, generate with filters,
// score, save and load a prefix. Each failure must be a typed error or change nothing, must leave no memory behind, and the next life must
// have the right results. `make test` tries a sample of the Ns, `make sanitize` every 17th. With --gtest_filter='*EveryFailure*',
// PUMICE_TEST_FAILURES=1 tries all, which takes 131 s of processor time, and half an hour with sanitizers. Grammars are tested by
// tests/python/machine/test_allocation_faults.py, because llguidance, which is Rust, does not allocate through what faults.cpp counts.
#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <new>
#include <thread>
#include <tuple>

#include "core/error.h"
#include "cpu/cpu_backend.h"
#include "engine/calls.h"
#include "engine/encode_queue.h"
#include "engine/faults.h"
#include "engine/model.h"
#include "engine/toy.h"
#include "files/file.h"
#include "os/limits.h"
#include "os/linux_files.h"
#include "patience.h"

namespace pumice::engine {
namespace {

using faults::allocations;
using faults::fails;
using faults::Faults;
using faults::reads;
using files::testing::TempFolder;
using toy::Kind;
using toy::Results;

class EveryFailure : public toy::SmallModel {
 protected:
  // Returns all results of a model's life. If one of its calls fails, the same calls of the same model must then succeed and give the pages
  // back.
  Results life(Faults& faults) {
    stage_ = "open";
    const auto file = files::ModelFile::open(folder_.path());
    stage_ = "load";
    const auto model = Model::load_on(std::vector<std::shared_ptr<Backend>>{backend_}, file, {.kv_budget = 1 << 22}, {}, Cancel{});
    try {
      return calls(*model);
    } catch (...) {
      faults.disarm();
      const std::string stage = stage_;
      EXPECT_TRUE(calls(*model) == expected_) << "the model has other results after a failure in " << stage;
      const std::int64_t pages = GetParam().generates ? toy::leaked(*model->decoder().pages) : 0;
      EXPECT_EQ(pages, 0) << "pages in use after a failure in " << stage;
      stage_ = stage;
      throw;
    }
  }

  // Runs a life in which calls number `call` to call + count - 1 fail. Returns the error, as "bad_alloc" or the kind's number; empty if
  // there was none.
  std::string failing(Faults& faults, std::int64_t call, std::int64_t count) {
    const std::int64_t before = allocations.held;
    std::string error;
    bool allowed = false;
    {
      Results result;
      faults.arm(call, count);
      try {
        result = life(faults);
        faults.disarm();
        EXPECT_TRUE(result == expected_) << "wrong results after call " << call;
      } catch (const std::bad_alloc&) {
        faults.disarm();
        error = "bad_alloc";
        allowed = &faults == &allocations;
      } catch (const Error& e) {
        faults.disarm();
        error = str("kind ", static_cast<int>(e.kind()));
        allowed = e.kind() == (&faults == &reads ? ErrorKind::io : ErrorKind::out_of_memory) && std::string(e.what()).size() > 10;
        if (!allowed) error += str(": ", e.what());
      } catch (const std::exception& e) {
        faults.disarm();
        error = str("not a pumice error: ", e.what());
      }
    }
    const std::int64_t left = allocations.held - before;
    EXPECT_TRUE(error.empty() || allowed) << "call " << call << " of " << stage_ << ": " << error;
    if (faults.failed > 0 && !error.empty()) ++errors_[stage_];
    if (!HasFailure()) {
      EXPECT_EQ(left, 0) << "bytes are left after call " << call << " of " << stage_;
    }
    return error;
  }

  // Runs lives with call 0, stride, 2 * stride, ... failing, until a life makes fewer calls.
  void every(Faults& faults, std::int64_t stride, std::int64_t count, const char* what) {
    expected_ = life(faults);
    ASSERT_TRUE(life(faults) == expected_);  // from here on, caches of the process are filled
    errors_.clear();
    std::int64_t tried = 0, thrown = 0;
    for (std::int64_t call = 0;; call += stride) {
      thrown += !failing(faults, call, count).empty();
      if (faults.failed == 0) break;
      if (++tried % 20 == 0) {
        EXPECT_TRUE(life(faults) == expected_) << "the life after call " << call << " failed has other results";
      }
      if (HasFailure()) return;
    }
    EXPECT_TRUE(life(faults) == expected_);
    std::cout << "  " << GetParam().name << ": " << tried << " of " << (tried - 1) * stride + 1 << " " << what << " failed, " << thrown
              << " errors:" << errors() << '\n';
    EXPECT_GT(thrown, tried / 2);
  }

  const std::shared_ptr<Backend> backend_ = cpu::make_backend(2);
};

TEST_P(EveryFailure, OfAnAllocation) { every(allocations, stride_or(101), 1, "allocations"); }

// From the Nth allocation on, all fail until the error reaches the caller: what cleans up must not need memory.
TEST_P(EveryFailure, OfAllAllocationsAfter) { every(allocations, stride_or(151), INT64_MAX, "allocations and all after"); }

TEST_P(EveryFailure, OfARead) {
  const auto usual = files::pread_call;
  files::pread_call = [](int file, void* out, std::size_t count, off_t offset) -> ssize_t {
    return fails(reads) ? (errno = EIO, -1) : ::pread(file, out, count, offset);
  };
  every(reads, stride_or(7), 1, "reads");
  files::pread_call = usual;
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFailure,
                         testing::Values(Kind{"llama32", true}, Kind{"mixtral", true}, Kind{"qwen3_next", true}, Kind{"bert", false}),
                         testing::PrintToStringParamName());

// Makes each allocation of a call fail, alone. The call must give its usual result, or std::bad_alloc.
template <class Call>
void exact_or_thrown(const Call& call) {
  const auto expected = call();
  int thrown = 0;
  for (std::int64_t at = 0;; ++at) {
    allocations.arm(at);
    try {
      const auto found = call();
      allocations.disarm();
      EXPECT_EQ(found, expected) << "allocation " << at;
    } catch (const std::bad_alloc&) {
      allocations.disarm();
      ++thrown;
    }
    if (allocations.failed == 0) break;
  }
  EXPECT_GE(thrown, 2);
}

TEST(EveryFailureOfAText, IsAnError) {
  exact_or_thrown([] {  // parts for which str() needs a stream
    return str("a name of more than fifteen bytes ", 1.0 / 3, ' ', 1u << 30, ' ', 2.5f, std::string(600, 'x'));
  });
}

// A line that is not read may be a limit of memory that is not seen.
TEST(EveryFailureOfALimit, IsAnError) {
  const TempFolder root;
  const auto write = [&](const std::string& file, const std::string& text) {
    const std::filesystem::path path = root.path() + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  write("/proc/self/cgroup", "9:memory:/a group with a long name\n4:cpu,cpuacct:/another one with a long name\n0::/user/of a long name\n");
  write("/sys/fs/cgroup/user/of a long name/memory.max", std::string(100, ' ') + "1000000\n");
  write("/sys/fs/cgroup/user/of a long name/memory.current", "700000\n");
  write("/sys/fs/cgroup/user/of a long name/memory.stat", "a line with a long name 1\ninactive_file 200000\n");
  write("/sys/fs/cgroup/cpu/another one with a long name/cpu.cfs_quota_us", "300000\n");
  write("/sys/fs/cgroup/cpu/another one with a long name/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu.max", "a quota with a long name\n");
  write("/proc/cpuinfo", "a line with a long name: 1\nmodel name\t: a processor with a long name\n");
  const auto limits = [&] {  // default_threads() takes memory of malloc(), too, whose leaks only `make sanitize` sees
    const os::Memory memory = os::cgroup_memory(root.path());
    return std::tuple(memory.total, memory.free, os::cpu_quota(root.path()), os::cpu_model(root.path()), os::default_threads());
  };
  EXPECT_EQ(limits(), std::tuple(1000000u, 500000u, 3.0, "a processor with a long name", os::default_threads()));
  exact_or_thrown(limits);
}

// The pump's reader must hear of the end of each request, also where the engine's thread has no memory to tell it.
TEST(EveryFailureOfAPump, EndsTheRequest) {
  std::int64_t tried = 0;
  for (bool failed = true; failed; ++tried) {
    toy::Model m;
    const auto request = m.scheduler->request({toy::text(1, 20)}, GenerateParams{.max_new_tokens = 12, .read_ahead = 8});
    request->start(1, 3);
    allocations.arm(tried);
    bool ended = false;
    for (const patience::Watch watch; !ended && watch.wall() < patience::kPatience.count();) {
      try {
        for (const RequestNews& news : m.scheduler->pump(100)) ended = ended || news.ended;
      } catch (const std::bad_alloc&) {  // of this thread: pump() keeps the news
      }
    }
    allocations.disarm();
    failed = allocations.failed > 0;
    ASSERT_TRUE(ended) << "allocation " << tried;
  }
  EXPECT_GT(tried, 20);
}

// A call that has no memory must leave the queue as it was: the other calls, and later ones, go on.
TEST(EveryFailureOfTheEncodeQueue, IsItsCallers) {
  toy::Model m{0, 4096, toy::Toy::Kind::pooled};
  EncodeQueue queue(*m.runtime);
  const auto encode = [&](std::uint64_t seed) {
    const std::vector<std::int32_t> ids = toy::text(seed, 9);
    const std::vector<std::int64_t> offsets{0, 9};
    std::vector<float> out(2, -5);
    queue.encode({.ids = ids, .offsets = offsets, .types = {}}, out, 2, false, {});
    return out;
  };
  constexpr std::uint64_t kThreads = 4;
  std::vector<std::vector<float>> wanted;
  for (std::uint64_t seed = 0; seed < kThreads; ++seed) wanted.push_back(encode(seed));
  std::int64_t tried = 0, thrown = 0;
  for (bool failed = true; failed; ++tried) {
    std::atomic<bool> go{false};
    std::atomic<std::int64_t> wrong{0}, errors{0};
    std::vector<std::thread> threads;
    for (std::uint64_t seed = 0; seed < kThreads; ++seed) {
      threads.emplace_back([&, seed] {
        while (!go) std::this_thread::yield();
        try {
          wrong += encode(seed) != wanted[seed];
        } catch (const std::bad_alloc&) {
          ++errors;
        }
      });
    }
    allocations.arm(tried);
    go = true;
    for (std::thread& thread : threads) thread.join();
    allocations.disarm();
    failed = allocations.failed > 0;
    thrown += errors > 0;
    ASSERT_EQ(wrong, 0) << "allocation " << tried;
    ASSERT_EQ(encode(1), wanted[1]) << "after allocation " << tried;
  }
  EXPECT_GT(thrown, 10);
}

}  // namespace
}  // namespace pumice::engine
