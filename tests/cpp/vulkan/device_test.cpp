// On devices with small limits, work must be cut into parts, dispatches folded, or a program refused, and results must not change. Also
// tests the pipeline cache on disk.
#include "vulkan/device.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "os/limits.h"
#include "patience.h"
#include "vulkan/chosen_device.h"
#include "vulkan/executor.h"
#include "vulkan/tiny.h"
#include "vulkan/vulkan_backend.h"

namespace pumice::vulkan::device_test {
namespace {

std::shared_ptr<Device> limited(const std::string& limits) {
  PhysicalDevice device = physical();
  lower_limits(device.limits, limits);
  return Device::open(device);
}

TEST(Extensions, ArePerDeviceAndIncludeThePortabilitySubset) {
  const auto of = [](const PhysicalDevice& device) {
    const std::vector<const char*> names = extensions_of(device);
    return std::vector<std::string>(names.begin(), names.end());
  };
  using Names = std::vector<std::string>;
  PhysicalDevice device;
  EXPECT_EQ(of(device), Names{});
  device.portability_subset = true;  // as MoltenVK's devices have it
  EXPECT_EQ(of(device), Names{"VK_KHR_portability_subset"});
  device.integer_dot = device.cooperative_matrix = true;
  EXPECT_EQ(of(device), (Names{"VK_KHR_shader_integer_dot_product", "VK_EXT_subgroup_size_control", "VK_KHR_cooperative_matrix",
                               "VK_KHR_portability_subset"}));
}

// ---------------------------------------------------------------- the text of the limits
TEST(LimitsText, LowersWhatItNames) {
  DeviceLimits limits;
  lower_limits(limits, "");
  EXPECT_EQ(limits.range, 1u << 27);
  lower_limits(limits, "range=1048577,groups=7,memory=0,submit_ms=1,");
  EXPECT_EQ(limits.range, 1u << 20);  // rounded down to a multiple of 256 bytes
  EXPECT_EQ(limits.groups_x, 7u);
  EXPECT_EQ(limits.groups_y, 7u);
  EXPECT_EQ(limits.memory, 0u);
  EXPECT_EQ(limits.submit_ms, 1u);
  lower_limits(limits, "groups=9");  // a limit is never increased
  EXPECT_EQ(limits.groups_x, 7u);
  EXPECT_EQ(limits.push_bytes, 128u);
  lower_limits(limits, "invocations=100");  // rounded down to a power of two, because reductions halve a workgroup
  EXPECT_EQ(limits.invocations, 64u);
}

TEST(LimitsText, IsRefusedInWords) {
  for (const char* text :
       {"range", "range=", "range=x", "range=1048576x", "range= 1048576", "range=-1", "range=1", "push=127", "groups=0", "rage=1048576",
        "=5", ",", "range=99999999999999999999", "range=1048576;groups=7", "range=1048576,,groups=7", "memory=1,invocations=31"}) {
    DeviceLimits limits;
    const std::string message = message_of(ErrorKind::invalid_argument, [&] { lower_limits(limits, text); });
    EXPECT_NE(message.find("PUMICE_VULKAN_LIMITS"), std::string::npos) << text;
    EXPECT_NE(message.find("submit_ms (from 1)"), std::string::npos) << text;
  }
}

TEST(LimitsTextDeathTest, OfTheEnvironmentIsReadWhenVulkanIsOpened) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const tiny::Environment wrong("PUMICE_VULKAN_LIMITS", "range=12");
  EXPECT_EXIT(
      {
        const std::vector<DeviceInfo> list = devices();
        const bool told = list.size() == 1 && !list[0].usable && list[0].why_not.find("'range=12'") != std::string::npos;
        bool raised = false;
        try {
          make_backend(0);
        } catch (const Error& error) {
          raised = error.kind() == ErrorKind::invalid_argument;
        }
        ::setenv("PUMICE_VULKAN_LIMITS", "range=1048576,memory=5000000", 1);  // a corrected value must work in the same process
        const std::vector<DeviceInfo> now = devices();
        ::_exit(told && raised && now.at(0).usable && now[0].memory_total == 5000000 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// ---------------------------------------------------------------- programs that need more than one of everything
struct Case {
  Program program;
  Weights weights;
  std::vector<float> in;
  std::vector<std::int32_t> ids, selected;
  std::vector<std::vector<std::int32_t>> pages;  // by segment; the lists are empty if there are no caches
  std::vector<std::int32_t> rows;                // number of rows, by segment
  std::int32_t store_pages = 0;
  std::size_t out = 0;
};

struct Ran {
  std::vector<float> out;
  std::size_t submissions = 0, dispatches = 0;
};

Ran run(Backend& backend, const Case& c) {
  const auto weights = backend.pack(c.weights, {}, {}, Cancel{});
  const auto caches = backend.make_caches(c.program, KvFormat::f32);
  caches->reserve(c.store_pages / 2);
  caches->reserve(c.store_pages);
  const auto executable = backend.prepare(c.program, weights, Compute::float32);
  const auto workspace = backend.make_workspace(Crew::team);
  std::vector<Segment> segments;
  std::int32_t rows = 0;
  for (std::size_t s = 0; s < c.rows.size(); ++s) {
    segments.push_back({rows, c.rows[s], 0, c.pages.empty() ? std::span<const std::int32_t>() : std::span<const std::int32_t>(c.pages[s])});
    rows += c.rows[s];
  }
  Ran ran;
  ran.out.resize(c.out);
  executable->run(*workspace, c.program.caches.empty() ? nullptr : caches.get(),
                  {.rows = rows, .ids = c.ids, .segments = segments, .selected = c.selected}, {.in = c.in, .out = ran.out}, Cancel{});
  if (const auto* space = dynamic_cast<const GpuWorkspace*>(workspace.get())) {
    ran.submissions = space->recorded.front().recording->submissions();
    ran.dispatches = space->recorded.front().recording->dispatches();
  }
  return ran;
}

constexpr std::int32_t kWide = 1024, kTall = 300;  // a matrix of this size takes 1.2 MB in float32

// Returns a program of an embedding, a product with a bias, a gated product and the head. With bindings of 1 MiB each of these must be cut.
Case products() {
  using cases::random_matrix;
  Case c;
  c.program.name = "products";
  c.program.slots = {{Rows::tokens, kWide}, {Rows::tokens, kTall}, {Rows::tokens, kTall}};
  c.program.ops = {Embed{.out = {0, 0, kWide}, .tokens = MatrixId{0}},
                   Linear{.in = {0, 0, kWide}, .out = {1, 0, kTall}, .parts = {{MatrixId{0}, VectorId{0}}}, .activation = Activation::relu},
                   GatedLinear{.in = {0, 0, kWide}, .out = {2, 0, kTall}, .gate = MatrixId{0}, .up = MatrixId{1}},
                   Norm{.in = {1, 0, kTall}, .out = {2, 0, kTall}, .add = {2, 0, kTall}, .weight = VectorId{1}}};
  c.program.output = 2;
  cases::Random random(5);
  c.weights = {.matrices = {random_matrix("table", Format::F32, kTall, kWide, 1), random_matrix("up", Format::F32, kTall, kWide, 2)},
               .vectors = {{"bias", random.normals(kTall)}, {"norm", random.normals(kTall, 0.1f, 1.0f)}}};
  c.rows = {3, 5};
  for (std::int32_t i = 0; i < 8; ++i) c.ids.push_back(i * (kTall - 1) / 7);
  c.out = 8 * kTall;
  return c;
}

// The keys of a page take 128 KiB in float32.
constexpr std::int32_t kKvHeads = 8, kHead = 128, kKv = kKvHeads * kHead;

// Returns a program of rope, store and attention over 20 pages that do not lie side by side. A binding of 1 MiB holds 8 pages.
Case cached() {
  Case c;
  c.program.name = "cached";
  c.program.slots = {{Rows::tokens, 3 * kKv}, {Rows::tokens, kKv}};
  c.program.caches = {{kKvHeads, kHead, kHead}};
  const View q{0, 0, kKv}, k{0, kKv, kKv}, v{0, 2 * kKv, kKv};
  RopeTable rope;
  for (std::int32_t i = 0; i < kHead / 2; ++i) rope.inv_freq.push_back(1.0f / static_cast<float>(i + 1));
  c.program.ops = {Rope{.x = q, .head_dim = kHead, .table = rope, .temperature = 0.1f, .temperature_length = 16},
                   Rope{.x = k, .head_dim = kHead, .table = rope}, Store{.k = k, .v = v, .cache = CacheId{0}},
                   Attend{.q = q,
                          .out = {1, 0, kKv},
                          .cache = CacheId{0},
                          .key_dim = kHead,
                          .value_dim = kHead,
                          .kv_heads = kKvHeads,
                          .causal = true,
                          .scale = 0.1f,
                          .slopes = VectorId{0},
                          .sinks = VectorId{1}}};
  c.weights.vectors = {{"slopes", cases::Random(7).normals(kKvHeads, 0.03f, 0.1f)}, {"sinks", cases::Random(13).normals(kKvHeads, 2.0f)}};
  c.program.input = 0, c.program.output = 1;
  c.rows = {70, 5};
  c.pages = {{3, 11, 19}, {8}};
  c.store_pages = 20;
  c.in = cases::Random(6).normals(75 * 3 * kKv);
  c.out = 75 * kKv;
  return c;
}

// Returns a program of an encoder's attention, with rope and a bias, over ten texts. It needs ten pages of scratch memory. A binding of 1
// MiB holds eight pages.
Case encoder() {
  Case c;
  c.program.name = "encoder";
  constexpr std::int32_t kValue = 88, kValues = kKvHeads * kValue;
  c.program.slots = {{Rows::tokens, 2 * kKv + kValues}, {Rows::tokens, kValues}};
  const View q{0, 0, kKv}, k{0, kKv, kKv}, v{0, 2 * kKv, kValues};
  RopeTable rope;
  for (std::int32_t i = 0; i < kHead / 2; ++i) rope.inv_freq.push_back(1.0f / static_cast<float>(i + 1));
  constexpr std::int32_t kReach = 6;
  c.program.ops = {Rope{.x = q, .head_dim = kHead, .table = rope}, Rope{.x = k, .head_dim = kHead, .table = rope},
                   Attend{.q = q,
                          .out = {1, 0, kValues},
                          .k = k,
                          .v = v,
                          .key_dim = kHead,
                          .value_dim = kValue,
                          .kv_heads = kKvHeads,
                          .scale = 0.1f,
                          .bias = VectorId{0},
                          .reach = kReach}};
  c.weights.vectors = {{"bias", cases::Random(9).normals(kKvHeads * (2 * kReach + 1))}};
  c.program.input = 0, c.program.output = 1;
  c.rows = {5, 1, 40, 3, 2, 7, 4, 6, 5, 2};
  c.in = cases::Random(8).normals(75 * (2 * kKv + kValues));
  c.out = 75 * kValues;
  return c;
}

// Returns a program that pools six texts, whose rows fill six bindings of 1 MiB. One text spans three bindings, and some texts end exactly
// at the end of a binding.
Case pooled() {
  Case c;
  c.program.name = "pooled";
  c.program.slots = {{Rows::tokens, kWide}, {Rows::segments, 6 * kTall}};
  std::int32_t col = 0;
  for (const PoolKind kind :
       {PoolKind::mean, PoolKind::cls, PoolKind::last, PoolKind::max, PoolKind::mean_sqrt_len, PoolKind::weighted_mean}) {
    c.program.ops.push_back(Pool{.in = {0, 7, kTall}, .out = {1, col, kTall}, .kind = kind});
    col += kTall;
  }
  c.program.input = 0, c.program.output = 1;
  c.rows = {300, 1, 211, 256, 2, 600};
  std::int32_t rows = 0;
  for (const std::int32_t r : c.rows) rows += r;
  c.in = cases::Random(9).normals(static_cast<std::size_t>(rows * kWide));
  c.out = c.rows.size() * 6 * kTall;
  return c;
}

struct NamedCase {
  const char* name;
  Case (*make)();
  const char* staged;  // limits with which weights and pages need several allocations
};
class SmallLimits : public testing::TestWithParam<NamedCase> {};

TEST_P(SmallLimits, ChangeNothing) {
  const Case c = GetParam().make();
  reference::ReferenceBackend reference;
  const std::vector<float> truth = run(reference, c).out;
  const Ran whole = run(*make_backend(limited(""), 0), c);
  EXPECT_LT(cases::nmse(whole.out, truth, 0), 1e-10);
  for (const char* limits : {"groups=3", "range=1048576,groups=3"}) {
    const auto device = limited(limits);
    {
      const Ran cut = run(*make_backend(device, 0), c);
      EXPECT_LT(cases::nmse(cut.out, truth, 0), 1e-10) << limits;
      EXPECT_GT(cut.dispatches, whole.dispatches) << limits;
    }
    EXPECT_EQ(device->allocated(), 0u) << limits;
  }
  // Weights take many allocations, and are copied through staging memory that is no larger than an allocation.
  const tiny::Environment apart("PUMICE_VULKAN_DISABLE", "unified");
  const auto staged = limited(GetParam().staged);
  EXPECT_FALSE(staged->host_sees_device_memory());
  EXPECT_LT(cases::nmse(run(*make_backend(staged, 0), c).out, truth, 0), 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Programs, SmallLimits,
                         testing::Values(NamedCase{"products", products, "allocation=1048576"},
                                         NamedCase{"cached", cached, "allocation=3145728"},
                                         NamedCase{"encoder", encoder, "allocation=5242880"},
                                         NamedCase{"pooled", pooled, "allocation=6291456"}),
                         [](const auto& test) { return std::string(test.param.name); });

// ---------------------------------------------------------------- memory
TEST(SmallMemory, IsRefusedWithTheNumbers) {
  const auto device = limited("memory=2000000");
  const auto backend = make_backend(device, 0);
  EXPECT_EQ(backend->info().memory_total, 2000000u);
  const Case c = products();
  const std::string weights = message_of(ErrorKind::out_of_device_memory, [&] { backend->pack(c.weights, {}, {}, Cancel{}); });
  EXPECT_NE(weights.find("needs 2460160 bytes, 2000000 are free"), std::string::npos) << weights;
  EXPECT_NE(weights.find(physical().name), std::string::npos);
  EXPECT_NE(weights.find("gpu_layers"), std::string::npos);
  EXPECT_EQ(device->allocated(), 0u);

  // A cache must grow as far as memory allows, and keep its contents when it cannot grow.
  tiny::Session session(*backend);
  session.prefill();
  const std::uint64_t before = device->allocated();
  const std::string pages = message_of(ErrorKind::out_of_device_memory, [&] { session.caches().reserve(1 << 20); });
  EXPECT_NE(pages.find("keys and values needs"), std::string::npos) << pages;
  EXPECT_EQ(device->allocated(), before);
  EXPECT_EQ(backend->info().memory_free, 2000000 - before);
  EXPECT_TRUE(tiny::right_end(session.decode()));
}

// The tables that tell shaders which rows belong to the same text must fit into one binding. A batch with too many texts must be refused,
// so that the caller can cut it.
TEST(SmallMemory, TablesOfTooManyTextsAreRefused) {
  const auto device = limited("range=1048576");
  const auto backend = make_backend(device, 0);
  Case c;
  c.program.name = "many";
  c.program.slots = {{Rows::tokens, 1}, {Rows::segments, 1}};
  c.program.ops = {Pool{.in = {0, 0, 1}, .out = {1, 0, 1}}};
  c.program.input = 0, c.program.output = 1;
  c.rows.assign(70000, 1);
  c.in.assign(70000, 0.5f);
  c.out = 70000;
  const std::string message = message_of(ErrorKind::out_of_device_memory, [&] { run(*backend, c); });
  EXPECT_NE(message.find("tables of 70000 rows"), std::string::npos) << message;
  EXPECT_NE(message.find("one binding holds 1048576"), std::string::npos) << message;
  EXPECT_EQ(device->allocated(), 0u);
}

// All vectors lie in one buffer, and an operation binds the part of it that has the operation's vectors. So all vectors together may be
// larger than a binding. But if two vectors of one operation lie farther apart than a binding is long, the program must be refused before
// it runs.
TEST(SmallMemory, VectorsMayTakeMoreThanABinding) {
  const auto backend = make_backend(limited("range=1048576"), 0);
  constexpr std::int32_t kWidth = 24;
  Case c;
  c.program.name = "norms";
  c.program.slots = {{Rows::tokens, kWidth}, {Rows::tokens, 2 * kWidth}};
  cases::Random random(12);
  const std::vector<float> filler(200000, 1.0f);  // 0.8 MB, so that two of these exceed a binding
  c.weights.vectors = {{"first", random.normals(kWidth)},
                       {"filler", filler},
                       {"filler", filler},
                       {"second", random.normals(kWidth)},
                       {"bias", random.normals(kWidth)}};
  const auto norm = [](std::int32_t col, int weight, int bias) {
    return Norm{.in = {0, 0, kWidth},
                .out = {1, col, kWidth},
                .weight = static_cast<VectorId>(weight),
                .bias = static_cast<VectorId>(bias),
                .kind = NormKind::layer};
  };
  c.program.ops = {norm(0, 0, -1), norm(kWidth, 3, 4)};
  c.program.input = 0, c.program.output = 1;
  c.rows = {3};
  c.in = random.normals(3 * kWidth);
  c.out = 6 * kWidth;
  reference::ReferenceBackend reference;
  EXPECT_LT(cases::nmse(run(*backend, c).out, run(reference, c).out, 0), 1e-10);

  c.program.ops[1] = norm(kWidth, 0, 4);
  const std::string message = message_of(ErrorKind::unsupported_model, [&] { run(*backend, c); });
  EXPECT_NE(message.find("tensors 'first' and 'bias' of one operation"), std::string::npos) << message;
  EXPECT_NE(message.find("binds at most 1048576"), std::string::npos) << message;
}

// ---------------------------------------------------------------- long work
Case long_work(std::int32_t rows) {
  Case c = products();
  c.program.ops.resize(2);
  for (int i = 0; i < 3; ++i) c.program.ops.push_back(Linear{.in = {0, 0, kWide}, .out = {2, 0, kTall}, .parts = {{MatrixId{1}}}});
  c.rows = {rows};
  c.ids.assign(static_cast<std::size_t>(rows), 7);
  c.out = static_cast<std::size_t>(rows) * kTall;
  return c;
}

constexpr double kPromised = 0.1;  // a Cancel is seen within these seconds; the tests allow five times as much

TEST(Preparing, StopsWhenItIsCancelled) {
  const auto device = Device::open(physical());
  const auto backend = make_backend(device, 0);
  const Case c = long_work(8);
  const auto weights = backend->pack(c.weights, {}, {}, Cancel{});
  Cancel cancel;
  cancel.request();
  (void)message_of(ErrorKind::cancelled, [&] { backend->prepare(c.program, weights, Compute::float32, cancel); });
  EXPECT_EQ(device->pipelines().size(), 0u);
  backend->prepare(c.program, weights, Compute::float32);
  EXPECT_GT(device->pipelines().size(), 0u);
}

// prepare() must make the pipelines for the format of the caches: with each format, the first runs must compile as few pipelines as with
// f16.
TEST(Preparing, MakesThePipelinesOfTheCachesFormat) {
  const auto compiled_in_runs = [](KvFormat kv) {
    const auto device = Device::open(physical());
    const auto backend = make_backend(device, 0);
    tiny::Session session(*backend, kv);
    const std::size_t prepared = device->pipelines().size();
    session.both();
    return device->pipelines().size() - prepared;
  };
  const std::size_t usual = compiled_in_runs(KvFormat::f16);
  for (const KvFormat kv : {KvFormat::f32, KvFormat::q8_0})
    EXPECT_EQ(compiled_in_runs(kv), usual) << kKvFormats[static_cast<std::size_t>(kv)];
}

TEST(Submissions, AreCutAndCancelIsSeenBetweenThem) {
  PhysicalDevice endless = physical();
  endless.limits.submit_ms = 100000;
  const Ran whole = run(*make_backend(Device::open(endless), 0), long_work(64));
  EXPECT_EQ(whole.submissions, 1u);
  const Ran cut = run(*make_backend(limited("submit_ms=1"), 0), long_work(64));
  if (physical().type == DeviceType::software) {  // other devices need only a millisecond or two
    EXPECT_GT(cut.submissions, 5u);
    EXPECT_GT(cut.dispatches, whole.dispatches);
  }
  EXPECT_EQ(cut.out, whole.out);

  // Another thread cancels work that takes seconds on a slow device. A fast device repeats the work until then.
  const auto backend = make_backend(limited(""), 0);
  const Case c = long_work(2048);
  const auto executable = backend->prepare(c.program, backend->pack(c.weights, {}, {}, Cancel{}), Compute::float32);
  const auto workspace = backend->make_workspace(Crew::team);
  std::vector<float> out(c.out);
  const auto go = [&](std::int32_t rows, const Cancel& cancel) {
    const Segment segment{0, rows, 0, {}};
    executable->run(*workspace, nullptr,
                    {.rows = rows, .ids = std::span(c.ids).first(static_cast<std::size_t>(rows)), .segments = {&segment, 1}},
                    {.out = std::span(out).first(static_cast<std::size_t>(rows) * kTall)}, cancel);
  };
  Cancel cancel;
  patience::Watch watch;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    watch = {};
    cancel.request();
  });
  message_of(ErrorKind::cancelled, [&] {
    for (const patience::Watch all; all.wall() < patience::kPatience.count();) go(2048, cancel);
  });
  other.join();                         // it has nothing left to do
  const double work = watch.process();  // a software device works in threads of this process
  const double wall = watch.wall();
  std::cout << "  cancelled after " << 1e3 * work << " ms of processor time, " << 1e3 * wall << " ms of wall time\n";
  RecordProperty("cancel_ms", static_cast<int>(1e3 * wall));
  EXPECT_LT(work, 5 * kPromised * os::allowed_cpus());
  if (patience::asserts_walls()) {
    EXPECT_LT(wall, 5 * kPromised);
  }
  go(64, Cancel{});  // the workspace must serve the next run
  EXPECT_EQ(std::vector(out.begin(), out.begin() + 64 * kTall), whole.out);
}

// A driver may compile a pipeline at its first run, for seconds. A cancelled run does not wait for that. The device then keeps what the
// submission uses, until it is done, and the next run waits for it.
TEST(Submissions, ACancelledRunIsLeftToTheDevice) {
  PhysicalDevice endless = physical();
  endless.limits.submit_ms = 100000;  // one submission
  const auto device = Device::open(endless);
  const auto backend = make_backend(device, 0);
  const Case c = long_work(64);
  const auto executable = backend->prepare(c.program, backend->pack(c.weights, {}, {}, Cancel{}), Compute::float32);
  auto workspace = backend->make_workspace(Crew::team);
  std::vector<float> out(c.out);
  const auto go = [&](const Cancel& cancel) {
    const Segment segment{0, 64, 0, {}};
    executable->run(*workspace, nullptr, {.rows = 64, .ids = c.ids, .segments = {&segment, 1}}, {.out = out}, cancel);
  };
  go(Cancel{});
  const std::vector<float> right = out;
  faults().arm(2, std::int64_t{1} << 60, VK_TIMEOUT);  // after vkResetFences and vkQueueSubmit: the fence is not signalled
  const auto cancelled = [&] {
    Cancel cancel;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      cancel.request();
    });
    message_of(ErrorKind::cancelled, [&] { go(cancel); });
    other.join();
  };
  cancelled();  // does not wait for the submission
  cancelled();  // waits for its turn
  const std::uint64_t held = device->allocated();
  workspace.reset();
  EXPECT_EQ(device->allocated(), held);  // the device may still use the workspace's buffers
  faults().disarm();
  workspace = backend->make_workspace(Crew::team);
  std::ranges::fill(out, 0.0f);
  go(Cancel{});
  EXPECT_EQ(out, right);
  EXPECT_EQ(device->allocated(), held);  // those of the old workspace are free, those of the new one are as large
}

TEST(Submissions, FollowWhatIsMeasured) {
  const auto device = limited("");
  EXPECT_EQ(device->pace(), 1);
  for (int i = 0; i < 100; ++i) device->measured(0.01, 0.03);  // the pieces of one recording have equal work
  EXPECT_DOUBLE_EQ(device->pace(), 3);
  const std::uint64_t step = device->pace_step();
  device->measured(0.01, 5);  // a piece that something has delayed
  EXPECT_DOUBLE_EQ(device->pace(), 12);
  EXPECT_NE(device->pace_step(), step);
  for (int i = 0; i < 100; ++i) device->measured(0.01, 0.03);
  EXPECT_NEAR(device->pace(), 3, 1e-6);
  EXPECT_EQ(device->pace_step(), step);
  for (int i = 0; i < 100; ++i) device->measured(1e-6, 0.03);  // ignored: in short pieces most of the time is the driver's overhead
  EXPECT_NEAR(device->pace(), 3, 1e-6);
}

// ---------------------------------------------------------------- the device's turn
TEST(Waiting, ForTheDeviceEndsWithACancel) {
  const auto device = limited("");
  const auto backend = make_backend(device, 0);
  tiny::Session session(*backend);
  Cancel cancel;
  std::thread other;
  std::atomic<bool> ended{false};
  {
    const std::lock_guard busy(device->turn());  // held as by a run that takes for ever
    other = std::thread([&] {
      message_of(ErrorKind::cancelled, [&] { session.prefill(cancel); });
      ended = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const patience::Watch watch;
    cancel.request();
    EXPECT_TRUE(patience::wait_until([&] { return ended.load(); }));
    std::cout << "  the wait ended after " << 1e3 * watch.wall() << " ms\n";
    if (patience::asserts_walls()) {
      EXPECT_LT(watch.wall(), 5 * kPromised);
    }
  }
  other.join();
  EXPECT_TRUE(tiny::right(session.both()));
}

// Growing the caches and copying pages must not wait for a run, because they have no Cancel, and the page pool is locked meanwhile.
TEST(Waiting, CachesGrowAndCopyBesideARun) {
  const auto device = limited("");
  const auto backend = make_backend(device, 0);
  tiny::Session session(*backend);
  const auto& store = dynamic_cast<const GpuCaches&>(session.caches());
  session.prefill();
  EXPECT_EQ(store.pages().all()->slabs.size(), 1u);
  std::thread other;
  std::atomic<bool> ended{false};
  {
    const std::lock_guard busy(device->turn());
    other = std::thread([&] {
      session.caches().reserve(5);
      session.caches().copy_page(0, 3);
      ended = true;
    });
    EXPECT_TRUE(patience::wait_until([&] { return ended.load(); }));
  }
  other.join();
  EXPECT_EQ(store.pages().all()->slabs.size(), 2u);  // a second slab, because a run may be using the first, which must not move
  EXPECT_TRUE(tiny::right_end(session.decode()));
  session.caches().reserve(9);
  EXPECT_EQ(store.pages().all()->slabs.size(), 1u);
  EXPECT_TRUE(tiny::right_end(session.decode()));
}

// While a run is executing, growing the caches and copying pages must not change the run's results.
TEST(Waiting, NothingChangesForTheRunBeside) {
  const Case c = cached();
  reference::ReferenceBackend reference;
  const std::vector<float> truth = run(reference, c).out;
  const auto backend = make_backend(limited(""), 0);
  const auto caches = backend->make_caches(c.program, KvFormat::f32);
  caches->reserve(c.store_pages);
  const auto executable = backend->prepare(c.program, backend->pack(c.weights, {}, {}, Cancel{}), Compute::float32);
  std::atomic<bool> done{false};
  std::atomic<int> runs{0};
  std::thread other([&] {
    const auto workspace = backend->make_workspace(Crew::team);
    std::vector<Segment> segments;
    std::int32_t rows = 0;
    for (std::size_t s = 0; s < c.rows.size(); ++s) {
      segments.push_back({rows, c.rows[s], 0, c.pages[s]});
      rows += c.rows[s];
    }
    std::vector<float> out(c.out);
    do {
      executable->run(*workspace, caches.get(), {.rows = rows, .segments = segments}, {.in = c.in, .out = out}, Cancel{});
      EXPECT_LT(cases::nmse(out, truth, 0), 1e-10);
      ++runs;
    } while (!done.load());
  });
  for (std::int32_t page = c.store_pages; page < c.store_pages + 16; ++page) {
    caches->reserve(page + 1);
    caches->copy_page(page - 1, page);
  }
  while (runs.load() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  done = true;
  other.join();
}

// ---------------------------------------------------------------- the pipeline cache on disk
class PipelineFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "pumice-pipeline-file-" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    set(folder_);
  }
  void TearDown() override {
    cache_.reset();
    std::filesystem::remove_all(folder_);
  }
  void set(const std::string& folder) {
    cache_.reset();
    cache_.emplace("PUMICE_CACHE_DIR", folder);
  }

  // Makes one pipeline on a new device. Returns how many bytes of the cache file were given to the driver.
  static std::size_t taken(const std::function<void()>& meanwhile = {}) {
    const auto device = Device::open(physical());
    const auto backend = make_backend(device, 0);
    Program program;
    program.name = "select";
    program.slots = {{Rows::tokens, 64}, {Rows::selected, 64}};
    program.ops = {Select{.in = {0, 0, 64}, .out = {1, 0, 64}}};
    program.input = 0, program.output = 1;
    const auto weights = backend->pack({}, {}, {}, Cancel{});
    const auto executable = backend->prepare(program, weights, Compute::float32);
    if (meanwhile) meanwhile();
    const auto workspace = backend->make_workspace(Crew::team);
    const std::vector<float> in = cases::Random(9).normals(2 * 64);
    const std::int32_t last = 1;
    std::vector<float> out(64);
    executable->run(*workspace, nullptr, {.rows = 2, .selected = {&last, 1}}, {.in = in, .out = out}, Cancel{});
    EXPECT_TRUE(std::equal(out.begin(), out.end(), in.begin() + 64));
    return device->pipelines().taken_from_disk();
  }
  std::filesystem::path file() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) files.push_back(entry.path());
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? std::filesystem::path() : files[0];
  }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const std::filesystem::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  std::string folder_;
  std::optional<tiny::Environment> cache_;
};

constexpr std::size_t kHeader = 24;  // magic, number of bytes that follow, their hash (FNV-1a)

std::string signed_again(std::string bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::size_t i = kHeader; i < bytes.size(); ++i) hash = (hash ^ static_cast<std::uint8_t>(bytes[i])) * 0x100000001b3u;
  const std::uint64_t size = bytes.size() - kHeader;
  std::memcpy(bytes.data() + 8, &size, 8);
  std::memcpy(bytes.data() + 16, &hash, 8);
  return bytes;
}

TEST_F(PipelineFile, IsTakenWholeOrNotAtAll) {
  EXPECT_EQ(taken(), 0u);
  const std::filesystem::path path = file();
  const std::string good = read(path);
  ASSERT_GE(good.size(), kHeader + 32);
  EXPECT_EQ(signed_again(good), good);
  EXPECT_EQ(taken(), good.size() - kHeader);

  std::vector<std::pair<std::string, std::string>> bad;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kHeader - 1, kHeader, kHeader + 31, good.size() - 1})
    bad.emplace_back("cut", good.substr(0, size));
  for (std::size_t i = 0; i < 16; ++i) {
    std::string flipped = good;
    flipped[i * (good.size() - 1) / 15] ^= static_cast<char>(1 << i % 8);
    bad.emplace_back("flipped", flipped);
  }
  bad.emplace_back("longer", good + "x");
  // Complete files of another driver, with a right hash. The header that Vulkan defines has another version, vendor, device or UUID (at
  // bytes 4, 8, 12 and 16).
  for (const std::size_t at : {4, 8, 12, 16, 31}) {
    std::string other = good;
    other[kHeader + at] ^= 0x55;
    bad.emplace_back("another device", signed_again(other));
  }
  bad.emplace_back("short and signed", signed_again(good.substr(0, kHeader + 20)));
  bad.emplace_back("empty and signed", signed_again(good.substr(0, kHeader)));
  for (const auto& [what, bytes] : bad) {
    write(path, bytes);
    EXPECT_EQ(taken(), 0u) << what << ", " << bytes.size() << " bytes";
    EXPECT_GE(std::filesystem::file_size(path), kHeader + 32) << what;  // a good file must replace it
  }
  write(path, good);
  EXPECT_EQ(taken(), good.size() - kHeader);
}

TEST_F(PipelineFile, CanBeAnythingOrNowhere) {
  taken();
  const std::filesystem::path path = file();
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(taken(), 0u);
  EXPECT_TRUE(std::filesystem::is_directory(path));
  EXPECT_EQ(file(), path);  // there must be no other file
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // reading a pipe would block
  EXPECT_EQ(taken(), 0u);
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/nonexistent/target", path);
  EXPECT_EQ(taken(), 0u);
  EXPECT_GT(taken([&] { std::filesystem::remove_all(folder_); }), 0u);  // removed while it is in use
  EXPECT_EQ(taken(), 0u);
  EXPECT_GT(taken(), 0u);
}

TEST_F(PipelineFile, FoldersThatCannotBeWritten) {
  write(folder_, "a file, where a folder is to be");
  EXPECT_EQ(taken(), 0u);
  for (const char* folder : {"/proc/nowhere", "/dev/full"}) {
    set(folder);
    EXPECT_EQ(taken(), 0u) << folder;
  }
  std::filesystem::remove(folder_);
  std::filesystem::create_directory(folder_);
  ::chmod(folder_.c_str(), 0500);  // root may write there nevertheless
  set(folder_);
  EXPECT_EQ(taken(), 0u);
  ::chmod(folder_.c_str(), 0700);
}

}  // namespace
}  // namespace pumice::vulkan::device_test
