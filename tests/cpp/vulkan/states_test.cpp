// States of recurrent operations on a device: texts go on from them in pieces, forks and snapshots, whichever slabs they lie in; they grow,
// and are copied to the host and back; what does not fit is refused in words. Also tests Slabs, which hold pages, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/program_check.h"
#include "vulkan/chosen_device.h"
#include "vulkan/executor.h"
#include "vulkan/tiny.h"
#include "vulkan/vulkan_backend.h"

namespace pumice::vulkan::states_test {
namespace {

// Opens the device with these limits. A binding holds 128 MiB unless `limits` says less. Every Vulkan device binds that much, and the tests
// count slabs, so neither the driver's limit nor PUMICE_VULKAN_LIMITS may change it.
std::shared_ptr<Device> limited(const std::string& limits) {
  PhysicalDevice device = physical();
  device.limits.range = std::uint64_t{1} << 27;
  lower_limits(device.limits, limits);
  return Device::open(device);
}

// ---------------------------------------------------------------- a recurrent layer
// The state of Scan takes 256 KiB, so a binding of 1 MiB holds four states. It holds 240 rows of the input, and a group of a software
// device goes through 256 rows.
constexpr std::int32_t kHeads = 4, kKeyHeads = 2, kDim = 128, kTaps = 4;
constexpr std::int32_t kKeys = kKeyHeads * kDim, kOut = kHeads * kDim, kConv = 2 * kKeys + kOut, kIn = kConv + 2 * kHeads;
constexpr double kLimit = 1e-9;

Program layer(ScanRule rule) {
  Program p{.name = "layer",
            .slots = {{Rows::tokens, kIn}, {Rows::tokens, kConv}, {Rows::tokens, kOut}},
            .states = {{1, kTaps - 1, kConv}, {kHeads, kDim, kDim}},
            .input = 0,
            .output = 2};
  p.ops = {Conv{.in = {0, 0, kConv},
                .out = {1, 0, kConv},
                .taps = VectorId{0},
                .width = kTaps,
                .activation = Activation::silu,
                .state = StateId{0}},
           Scan{.q = {1, 0, kKeys},
                .k = {1, kKeys, kKeys},
                .v = {1, 2 * kKeys, kOut},
                .step = {0, kConv, kHeads},
                .beta = rule == ScanRule::delta ? View{0, kConv + kHeads, kHeads} : View{},
                .out = {2, 0, kOut},
                .rate = VectorId{1},
                .skip = rule == ScanRule::ssd ? VectorId{2} : VectorId::none,
                .key_heads = kKeyHeads,
                .key_dim = kDim,
                .value_dim = kDim,
                .rule = rule,
                .state = StateId{1}}};
  return p;
}

Weights weights() {
  cases::Random random(3);
  return {.vectors = {{"taps", random.normals(kTaps * kConv, 0.5f)},
                      {"rate", random.normals(kHeads, 0.1f, -0.3f)},
                      {"skip", random.normals(kHeads)}}};
}

std::vector<float> text(std::uint64_t seed, std::int32_t rows) { return cases::Random(seed).normals(std::int64_t{rows} * kIn, 0.2f); }

// Rows [first, first + rows) of a text that go on from state `state`.
struct Piece {
  std::size_t text;
  std::int32_t first, rows, state = -1;
  std::vector<SavedState> saves;
};

class Layer {
 public:
  Layer(std::shared_ptr<Backend> backend, ScanRule rule, std::int32_t states)
      : backend_(std::move(backend)),
        store_(backend_->make_caches(layer(rule), KvFormat::f16)),
        program_(backend_->prepare(layer(rule), backend_->pack(weights(), {}, {}, Cancel{}), Compute::float32)),
        workspace_(backend_->make_workspace(Crew::team)) {
    store_->reserve_states(states);
  }

  // Runs pieces of texts in one batch, and returns their rows one after another.
  std::vector<float> run(const std::vector<std::vector<float>>& texts, const std::vector<Piece>& pieces) {
    std::vector<Segment> segments;
    std::vector<float> in;
    std::int32_t rows = 0;
    for (const Piece& piece : pieces) {
      segments.push_back({.first = rows, .rows = piece.rows, .past = piece.first, .state = piece.state, .saves = piece.saves});
      const auto begin = texts[piece.text].begin() + std::ptrdiff_t{piece.first} * kIn;
      in.insert(in.end(), begin, begin + std::ptrdiff_t{piece.rows} * kIn);
      rows += piece.rows;
    }
    std::vector<float> out(static_cast<std::size_t>(rows) * kOut);
    program_->run(*workspace_, store_.get(), {.rows = rows, .segments = segments}, {in, out}, Cancel{});
    return out;
  }

  CacheStore& store() { return *store_; }
  const GpuCaches& caches() const { return dynamic_cast<const GpuCaches&>(*store_); }
  std::size_t slabs() const { return caches().states().all()->slabs.size(); }
  const GpuWorkspace& space() const { return dynamic_cast<const GpuWorkspace&>(*workspace_); }

 private:
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<CacheStore> store_;
  std::shared_ptr<const Executable> program_;
  std::unique_ptr<Workspace> workspace_;
};

// The whole texts on the reference backend.
class Truth {
 public:
  Truth(ScanRule rule, const std::vector<std::vector<float>>& texts) {
    Layer whole(std::make_shared<reference::ReferenceBackend>(), rule, 0);
    for (std::size_t t = 0; t < texts.size(); ++t)
      rows_.push_back(whole.run(texts, {{.text = t, .first = 0, .rows = static_cast<std::int32_t>(texts[t].size() / kIn)}}));
  }
  std::vector<float> of(const std::vector<Piece>& pieces) const {
    std::vector<float> rows;
    for (const Piece& piece : pieces) {
      const auto begin = rows_[piece.text].begin() + std::ptrdiff_t{piece.first} * kOut;
      rows.insert(rows.end(), begin, begin + std::ptrdiff_t{piece.rows} * kOut);
    }
    return rows;
  }

 private:
  std::vector<std::vector<float>> rows_;
};

class StateSlabs : public testing::TestWithParam<ScanRule> {};

// Texts are run in pieces that begin and end in many ways: saves in the middle, several pieces of one text in a batch (forks), pieces
// shorter than the taps of Conv, one row at a time. The states of a batch lie in different slabs.
TEST_P(StateSlabs, TextsGoOnFromEveryState) {
  const std::vector<std::vector<float>> texts = {text(1, 620), text(2, 9), text(3, 40)};
  const Truth truth(GetParam(), texts);
  const std::vector<std::vector<Piece>> batches = {
      {{0, 0, 300, -1, {{1, 0}, {2, 17}, {7, 5}, {256, 18}, {257, 4}, {299, 9}, {300, 13}}},
       {1, 0, 2, -1, {{2, 1}}},
       {2, 0, 1, -1, {{1, 19}}}},
      {{2, 1, 1, 19, {{1, 2}}}, {0, 300, 320, 13, {{1, 3}, {319, 6}, {320, 7}}}, {0, 7, 5, 5, {}}, {1, 2, 2, 1, {{1, 8}, {2, 10}}}},
      {{0, 2, 1, 17, {{1, 11}}}, {0, 1, 2, 0, {{2, 12}}}, {2, 2, 38, 2, {{38, 14}}}, {0, 257, 43, 4, {{43, 15}}}, {1, 4, 5, 10, {}}},
      {{0, 619, 1, 6, {}}, {0, 301, 1, 3, {{1, 0}}}, {0, 3, 1, 11, {{1, 1}}}, {0, 3, 1, 12, {{1, 2}}}},
      {{0, 302, 1, 0, {{1, 17}}}, {0, 4, 1, 1, {{1, 18}}}, {0, 4, 1, 2, {{1, 5}}}, {0, 300, 1, 15, {{1, 4}}}}};
  for (const char* limits : {"", "groups=3,submit_ms=1", "range=1048576", "range=1048576,groups=3"}) {
    const auto device = limited(limits);
    {
      Layer layer(make_backend(device, 0), GetParam(), 7);
      layer.store().reserve_states(20);
      const bool cut = std::string(limits).find("range") != std::string::npos;
      EXPECT_EQ(layer.slabs(), cut ? 5u : 1u) << limits;
      for (int again = 0; again < 2; ++again) {  // the second time, most recordings are replayed
        for (std::size_t b = 0; b < batches.size(); ++b)
          EXPECT_LT(cases::nmse(layer.run(texts, batches[b]), truth.of(batches[b]), 0), kLimit) << limits << ", batch " << b;
      }
    }
    EXPECT_EQ(device->allocated(), 0u) << limits;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, StateSlabs, testing::Values(ScanRule::ssd, ScanRule::delta),
                         [](const auto& test) { return std::string(kScanRules[static_cast<std::size_t>(test.param)]); });

// Which states a run reads and writes, after which rows, and how many they are, is no part of its recording. So there is one recording for
// each number of rows. (There may be another one after the device's pace has changed, which it does on a busy machine.)
TEST(States, AreNoPartOfARecording) {
  const std::vector<std::vector<float>> texts = {text(4, 40), text(5, 40)};
  const Truth truth(ScanRule::delta, texts);
  const auto device = limited("");
  Layer layer(make_backend(device, 0), ScanRule::delta, 6);
  std::set<std::uint64_t> paces;
  const std::vector<Piece> begin[] = {{{0, 0, 20, -1, {{20, 0}}}, {1, 0, 10, -1, {{10, 1}}}},
                                      {{0, 0, 20, -1, {{3, 4}, {11, 5}, {20, 2}}}, {1, 0, 10, -1, {}}},
                                      {{0, 0, 20, -1, {}}, {1, 0, 10, -1, {{1, 4}, {10, 3}}}}};
  for (const std::vector<Piece>& pieces : begin) {
    paces.insert(device->pace_step());
    EXPECT_LT(cases::nmse(layer.run(texts, pieces), truth.of(pieces), 0), kLimit);
  }
  const std::size_t recorded = layer.space().recorded.size();
  EXPECT_LE(recorded, paces.size());
  paces.clear();
  std::int32_t at = 0;
  for (std::int32_t i = 0; i < 10; ++i, at = 2 - at) {  // states 0 and 1 give 2 and 3, and these give 0 and 1
    const std::vector<Piece> step = {{0, 20 + i, 1, at, {{1, 2 - at}}}, {1, 10 + i, 1, at + 1, {{1, 3 - at}}}};
    paces.insert(device->pace_step());
    EXPECT_LT(cases::nmse(layer.run(texts, step), truth.of(step), 0), kLimit) << i;
  }
  EXPECT_LE(layer.space().recorded.size(), recorded + paces.size());
}

// A state keeps its numbers while the store grows, also beside a run that goes on.
TEST(States, GrowAndAreCopiedOutAndIn) {
  const std::vector<std::vector<float>> texts = {text(6, 30)};
  const Truth truth(ScanRule::delta, texts);
  const std::vector<Piece> begin = {{0, 0, 20, -1, {{20, 1}}}};
  for (const bool staged : {false, true}) {
    std::optional<tiny::Environment> apart;
    if (staged) apart.emplace("PUMICE_VULKAN_DISABLE", "unified");
    const auto device = limited("");
    Layer layer(make_backend(device, 0), ScanRule::delta, 2);
    CacheStore& store = layer.store();
    layer.run(texts, begin);
    std::vector<std::uint8_t> first(store.state_bytes()), found(store.state_bytes());
    store.read_state(1, first.data());
    const auto same = [&](std::int32_t state) {
      store.read_state(state, found.data());
      return found == first;
    };
    const auto goes_on = [&](std::int32_t state) {
      const std::vector<Piece> rest = {{0, 20, 10, state, {}}};
      return cases::nmse(layer.run(texts, rest), truth.of(rest), 0) < kLimit;
    };
    store.reserve_states(5);
    EXPECT_EQ(layer.slabs(), 1u);
    EXPECT_TRUE(same(1) && goes_on(1));
    {
      const std::lock_guard busy(device->turn());  // held as by a run
      std::thread([&] {
        store.reserve_states(6);
        store.reserve_states(9);
        store.write_state(8, first.data());
      }).join();
    }
    EXPECT_EQ(layer.slabs(), 3u);  // slabs of 5, 1 and 3 states, because a run may be using them
    EXPECT_TRUE(same(1) && same(8) && goes_on(1) && goes_on(8));
    store.reserve_states(10);
    EXPECT_EQ(layer.slabs(), 1u);
    EXPECT_TRUE(same(1) && same(8) && goes_on(1) && goes_on(8));
    store.reserve_states(3);
    EXPECT_EQ(layer.caches().states().all()->units, 10);
  }
}

TEST(States, CostWhatIsSaid) {
  const auto device = limited("");
  const auto backend = make_backend(device, 0);
  const Weights host = weights();
  const Cost cost = backend->cost(layer(ScanRule::ssd), shapes_of(host), KvFormat::f16, 700);
  Layer layer(backend, ScanRule::ssd, 0);
  EXPECT_EQ(cost.state, (3 * kConv + kHeads * kDim * kDim) * sizeof(float));
  EXPECT_EQ(cost.state, layer.store().state_bytes());
  EXPECT_EQ(cost.page, 0u);
  std::uint64_t before = device->allocated();
  layer.store().reserve_states(11);
  EXPECT_GE(device->allocated() - before, 11 * cost.state);
  EXPECT_LE(device->allocated() - before, 11 * cost.state + (1 << 18));  // what the driver adds to a buffer
  before = device->allocated();
  layer.run({text(7, 700)}, {{0, 0, 700, -1, {{700, 3}}}});
  const std::uint64_t run = device->allocated() - before;
  EXPECT_GE(cost.scratch * 5 / 4 + (1 << 18), run);  // buffers are rounded up by a quarter
  EXPECT_LE(cost.scratch, run + run / 8);
}

TEST(States, ThatDoNotFitAreRefused) {
  const std::vector<std::vector<float>> texts = {text(8, 30)};
  const Truth truth(ScanRule::ssd, texts);
  const std::vector<Piece> begin = {{0, 0, 20, -1, {{20, 1}}}}, rest = {{0, 20, 10, 1, {{10, 0}}}};
  const auto device = limited("memory=4000000");
  Layer layer(make_backend(device, 0), ScanRule::ssd, 3);
  layer.run(texts, begin);
  const std::uint64_t before = device->allocated();
  const std::string message = message_of(ErrorKind::out_of_device_memory, [&] { layer.store().reserve_states(100); });
  EXPECT_NE(message.find("states of recurrent layers needs"), std::string::npos) << message;
  EXPECT_EQ(device->allocated(), before);
  EXPECT_LT(cases::nmse(layer.run(texts, rest), truth.of(rest), 0), kLimit);

  // States that are not there, that are read and written by one run, and a store of another program.
  for (const std::vector<Piece>& wrong :
       {std::vector<Piece>{{0, 20, 1, 3, {}}}, std::vector<Piece>{{0, 0, 1, -1, {{1, 3}}}}, std::vector<Piece>{{0, 20, 1, 1, {{1, 1}}}},
        std::vector<Piece>{{0, 20, 1, -1, {}}}, std::vector<Piece>{{0, 0, 2, -1, {{2, 0}, {1, 2}}}}})
    message_of(ErrorKind::invalid_argument, [&] { layer.run(texts, wrong); });
  std::vector<std::uint8_t> bytes(layer.store().state_bytes());
  message_of(ErrorKind::invalid_argument, [&] { layer.store().read_state(3, bytes.data()); });
  message_of(ErrorKind::invalid_argument, [&] { layer.store().write_state(-1, bytes.data()); });
  EXPECT_LT(cases::nmse(layer.run(texts, rest), truth.of(rest), 0), kLimit);
}

TEST(States, AndRowsThatNoBindingHoldsAreRefusedBeforeARun) {
  const auto backend = make_backend(limited("range=1048576"), 0);
  const auto prepare = [&](Program p, Weights w) { backend->prepare(std::move(p), backend->pack(w, {}, {}, Cancel{}), Compute::float32); };
  Program wide = layer(ScanRule::ssd);
  wide.ops.erase(wide.ops.begin());
  auto& scan = std::get<Scan>(wide.ops[0]);
  constexpr std::int32_t kMany = 16;  // a state of 1 MiB, two of which do not fit beside a row's factors
  wide.slots = {{Rows::tokens, 2 * kKeys + kMany * (kDim + 1)}, {Rows::tokens, 1}, {Rows::tokens, kMany * kDim}};
  scan.q.slot = scan.k.slot = scan.v.slot = 0;
  scan.v.width = scan.out.width = kMany * kDim;
  scan.step = {0, 2 * kKeys + kMany * kDim, kMany};
  scan.state = StateId{0};
  wide.states = {{kMany, kDim, kDim}};
  const Weights many{.vectors = {{"taps", {}}, {"rate", std::vector<float>(kMany, -1.0f)}, {"skip", std::vector<float>(kMany, 1.0f)}}};
  std::string message = message_of(ErrorKind::unsupported_model, [&] { prepare(wide, many); });
  EXPECT_NE(message.find("Scan of 16 heads of 128 x 128 needs 2097344 bytes at once"), std::string::npos) << message;
  EXPECT_NE(message.find("binds at most 1048576"), std::string::npos) << message;

  constexpr std::int32_t kColumns = 8192;
  Program conv{.name = "conv", .slots = {{Rows::tokens, kColumns}, {Rows::tokens, kColumns}}, .input = 0};
  conv.ops = {Conv{.in = {0, 7, 3}, .out = {1, 5, 3}, .taps = VectorId{0}, .width = 33}};
  const auto taps = [](std::int32_t count) { return Weights{.vectors = {{"taps", std::vector<float>(static_cast<std::size_t>(count))}}}; };
  message = message_of(ErrorKind::unsupported_model, [&] { prepare(conv, taps(33 * 3)); });
  EXPECT_NE(message.find("Conv of 33 taps reads as many rows of 32768 bytes at once"), std::string::npos) << message;
  std::get<Conv>(conv.ops[0]).width = 32;
  prepare(conv, taps(32 * 3));

  const Program big{.states = {{5, 128, 512}}};
  message = message_of(ErrorKind::unsupported_model, [&] { backend->make_caches(big, KvFormat::f16); });
  EXPECT_NE(message.find("part of a state (states of recurrent layers) has 1310720 bytes"), std::string::npos) << message;
  for (const StateShape& shape : {StateShape{0, 1, 1}, StateShape{1, -1, 4}, StateShape{1, 1025, 1}, StateShape{65537, 1, 1}})
    message_of(ErrorKind::unsupported_model, [&] { backend->make_caches({.states = {shape}}, KvFormat::f16); });
}

// ---------------------------------------------------------------- slabs
constexpr std::uint64_t kPlane = 1 << 18;
constexpr std::size_t kPlanes = 8;  // a unit takes 2 MiB

std::vector<std::uint8_t> unit(int seed) {
  cases::Random random(static_cast<std::uint64_t>(seed));
  std::vector<std::uint8_t> bytes(kPlanes * kPlane);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.bits());
  return bytes;
}

// Slabs of units 0 to 3 with random bytes, on a device with so much memory (in MiB, beside 0.1 MiB for staging buffers and their like).
struct Filled {
  explicit Filled(int memory, const std::string& more = "")
      : device(limited("memory=" + std::to_string((memory << 20) + 100000) + more)),
        slabs(device, std::vector<std::uint64_t>(kPlanes, kPlane), "test", "unit") {
    slabs.reserve(4);
    const Slabs& all = slabs;
    for (std::int32_t i = 0; i < 4; ++i) all.write({&i, 1}, unit(i).data(), 0);
  }
  // Whether all units have their bytes, read at once and into places that lie apart.
  bool intact() const {
    constexpr std::uint64_t kStride = kPlanes * kPlane + 512;
    const std::int32_t ids[] = {2, 0, 3, 1};
    std::vector<std::uint8_t> found(4 * kStride);
    slabs.read(ids, found.data(), kStride);
    return std::ranges::all_of(std::vector{0, 1, 2, 3}, [&](int i) {
      const auto begin = found.begin() + static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(i) * kStride);
      return std::equal(begin, begin + kPlanes * kPlane, unit(ids[i]).begin());
    });
  }
  std::size_t count() const { return slabs.all()->slabs.size(); }

  const std::shared_ptr<Device> device;
  Slabs slabs;
};

TEST(Slabs, GrowWithMemoryForOneMorePlane) {
  // A slab of 8 units has 16 MiB, and one of its planes 2 MiB. Two slabs of 4 and of 8 units would need 24 MiB.
  Filled enough(18);
  enough.slabs.reserve(8);
  EXPECT_EQ(enough.count(), 1u);
  EXPECT_GE(enough.device->allocated(), 16u << 20);
  EXPECT_LT(enough.device->allocated(), (16u << 20) + 100000);
}

TEST(Slabs, KeepTheirUnitsWhereMemoryIsScarce) {
  Filled joined(26);  // 8 more for what intact() reads
  joined.slabs.reserve(8);
  EXPECT_EQ(joined.count(), 1u);
  EXPECT_TRUE(joined.intact());

  Filled apart(17);
  apart.slabs.reserve(8);
  EXPECT_EQ(apart.count(), 2u);
  EXPECT_EQ(apart.slabs.all()->units, 8);

  Filled full(16);
  const std::uint64_t before = full.device->allocated();
  message_of(ErrorKind::out_of_device_memory, [&] { full.slabs.reserve(9); });
  EXPECT_EQ(full.device->allocated(), before);
  EXPECT_EQ(full.slabs.all()->units, 4);
  EXPECT_TRUE(full.intact());
}

// No slab may hold more units than one binding holds of a plane, and slabs that are added beside a run are joined up to there.
TEST(Slabs, AreJoinedUpToABinding) {
  Filled slabs(100, ",range=1572864");  // 6 units
  {
    const std::lock_guard busy(slabs.device->turn());
    std::thread([&] {
      for (const std::int32_t units : {5, 9, 14}) slabs.slabs.reserve(units);
    }).join();
  }
  std::vector<std::int32_t> sizes;
  for (const Slabs::Slab& slab : slabs.slabs.all()->slabs) sizes.push_back(slab.units);
  EXPECT_EQ(sizes, (std::vector<std::int32_t>{4, 1, 1, 3, 3, 2}));
  EXPECT_TRUE(slabs.intact());
  slabs.slabs.reserve(15);
  sizes.clear();
  for (const Slabs::Slab& slab : slabs.slabs.all()->slabs) sizes.push_back(slab.units);
  EXPECT_EQ(sizes, (std::vector<std::int32_t>{6, 6, 3}));
  EXPECT_TRUE(slabs.intact());
}

// If an allocation fails although memory seemed to be there, the planes that were moved before stay where they are now.
TEST(Slabs, ThatStopInTheMiddleOfGrowingLoseNothing) {
  for (std::int64_t call = 0; call < 60; ++call) {
    Filled slabs(100);
    faults().arm(call, 1, VK_ERROR_OUT_OF_DEVICE_MEMORY);
    try {
      slabs.slabs.reserve(6);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::out_of_device_memory);
    }
    faults().disarm();
    EXPECT_TRUE(slabs.intact()) << call;
    slabs.slabs.reserve(7);
    EXPECT_EQ(slabs.count(), 1u) << call;
    EXPECT_TRUE(slabs.intact()) << call;
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace pumice::vulkan::states_test
