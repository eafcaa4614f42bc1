// Models whose experts do not all fit into memory (cpu/expert_cache.h): the same bits as with all experts in memory, whatever was read
// before, and after runs that failed or were stopped.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "cases.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_weights.h"
#include "reference/op_cases.h"

namespace pumice::cpu {
namespace {

constexpr std::int32_t kCols = 256, kWidth = 256, kExperts = 8, kChosen = 2, kLayers = 4;

// Some layers of experts, one after another. Each router's logits are the first columns of the row.
Program layers() {
  Program p{.name = "layers", .slots = {{Rows::tokens, kCols}, {Rows::tokens, 2 * kChosen}}, .input = 0};
  for (std::int32_t l = 0; l < kLayers; ++l) {
    const std::int32_t in = l == 0 ? 0 : l + 1, out = l + 2;
    p.slots.push_back({Rows::tokens, kCols});
    p.ops.push_back(Route{.logits = {in, 8 * l, kExperts}, .out = {1, 0, 2 * kChosen}, .chosen = kChosen});
    p.ops.push_back(Experts{.in = {in, 0, kCols},
                            .route = {1, 0, 2 * kChosen},
                            .out = {out, 0, kCols},
                            .residual = {in, 0, kCols},
                            .gate = MatrixId{3 * l},
                            .up = MatrixId{3 * l + 1},
                            .down = MatrixId{3 * l + 2}});
    p.output = out;
  }
  return p;
}

// The source of all matrices. Tests see which experts are read, and can make reading fail.
struct File {
  std::atomic<std::int64_t> rows_read{0}, rows_until_failure{INT64_MAX};
  std::atomic<bool> changed{false};

  Weights weights(std::vector<Format> formats) {
    Weights w;
    for (std::int32_t m = 0; m < 3 * kLayers; ++m) {
      const std::int64_t rows = (m % 3 == 2 ? kCols : kWidth) * kExperts, cols = m % 3 == 2 ? kWidth : kCols;
      Matrix matrix = cases::random_matrix(str("m", m), formats[static_cast<std::size_t>(m) % formats.size()], rows, cols, 30 + m);
      matrix.experts = kExperts;
      matrix.read = [this, read = matrix.read](std::int64_t first, std::int64_t count, std::uint8_t* out) {
        if ((rows_read += count) > rows_until_failure) fail(ErrorKind::io, "the disk is gone");
        read(first, count, out);
      };
      w.matrices.push_back(std::move(matrix));
    }
    w.require_unchanged = [this] {
      if (changed) fail(ErrorKind::io, "the file has changed");
    };
    return w;
  }
};

class Model {
 public:
  Model(File& file, std::uint64_t bytes, std::vector<Format> formats = {Format::Q4_K}, int threads = 2) : backend(make_backend(threads)) {
    const Program p = layers();
    const Program* const programs[] = {&p};
    weights = backend->pack(file.weights(std::move(formats)), programs, {}, Cancel(), bytes);
    program_ = backend->prepare(p, weights, Compute::automatic);
  }
  std::vector<float> operator()(const std::vector<float>& in, Crew crew = Crew::team, const Cancel& cancel = Cancel()) const {
    std::vector<float> out(in.size());
    program_->run(*backend->make_workspace(crew), nullptr, {.rows = static_cast<std::int32_t>(in.size() / kCols)}, {in, out}, cancel);
    return out;
  }
  const PackedWeights& packed() const { return dynamic_cast<const PackedWeights&>(*weights); }

  std::shared_ptr<Backend> backend;
  std::shared_ptr<const DeviceWeights> weights;

 private:
  std::shared_ptr<const Executable> program_;
};

std::vector<float> rows(int count, std::uint64_t seed) { return cases::Random(seed).normals(std::size_t(count) * kCols, 1.0f); }

ExpertBytes bytes_of(std::vector<Format> formats = {Format::Q4_K}) {
  File file;
  const Program p = layers();
  const Program* const programs[] = {&p};
  return expert_bytes(expert_layers(programs), pumice::shapes_of(file.weights(std::move(formats))));
}

ErrorKind kind_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::invalid_argument;
}

TEST(ExpertCache, AnySizeGivesTheSameBits) {
  // The second list gives layers of two sizes of experts, which are in two pools.
  for (const std::vector<Format>& formats : {std::vector<Format>{Format::Q4_K},
                                             {Format::Q4_K, Format::Q4_K, Format::Q6_K, Format::Q4_K, Format::Q4_K, Format::Q4_K},
                                             {Format::F32},
                                             {Format::BF16, Format::MXFP4, Format::Q8_0}}) {
    File all_file;
    const Model all(all_file, kAllExperts, formats);
    const ExpertBytes bytes = bytes_of(formats);
    EXPECT_EQ(all.packed().cache(), nullptr);
    for (const std::uint64_t size : {bytes.least, (bytes.least + bytes.all) / 2, bytes.all - 1}) {
      File file;
      const Model some(file, size, formats);
      ASSERT_NE(some.packed().cache(), nullptr) << size;
      EXPECT_LE(some.packed().cache()->bytes(), size);
      EXPECT_LE(some.weights->bytes(), size);
      for (const int count : {1, 1, 3, 1, 200, 1, 2})
        for (const std::uint64_t seed : {1, 2, 3}) ASSERT_EQ(some(rows(count, seed)), all(rows(count, seed))) << size << ", " << count;
      if (size == bytes.least) {
        EXPECT_GT(some.weights->expert_reads(), 0u);
      }
    }
    EXPECT_EQ(all.weights->expert_reads(), 0u);
  }
}

TEST(ExpertCache, LessThanTheExpertsOfALayerIsRefused) {
  File file;
  EXPECT_EQ(kind_of([&] { Model(file, bytes_of().least - 1); }), ErrorKind::out_of_memory);
  EXPECT_EQ(file.rows_read, 0);
}

// Steps with many rows need all experts of each layer in turn. The experts of the layers that fit must stay.
TEST(ExpertCache, PromptsReadOnlyWhatDoesNotFit) {
  File file;
  const ExpertBytes bytes = bytes_of();
  const Model model(file, bytes.all * 3 / 4);
  model(rows(300, 5));  // the load has put the first layers into the cache
  const std::uint64_t before = model.weights->expert_reads();
  for (int i = 0; i < 5; ++i) model(rows(300, 5));
  EXPECT_LE(model.weights->expert_reads() - before, 5u * kLayers * kExperts * 3 / 8);  // a quarter of all experts does not fit
}

// Experts that many steps chose stay in the cache when another row needs others.
TEST(ExpertCache, OftenChosenExpertsStay) {
  File file;
  const Model model(file, bytes_of().least);
  for (int i = 0; i < 100; ++i) model(rows(1, 7));
  model(rows(1, 8));
  const std::uint64_t before = model.weights->expert_reads();
  for (int i = 0; i < 10; ++i) model(rows(1, 7));
  EXPECT_LE(model.weights->expert_reads() - before, 2u * kChosen);
}

TEST(ExpertCache, AFailedReadLeavesNoHalfReadExpert) {
  File all_file, file;
  const Model all(all_file, kAllExperts), model(file, bytes_of().least);
  for (const std::int64_t rows_more : {0, 100, 256, 700, 1500}) {
    file.rows_until_failure = file.rows_read + rows_more;
    EXPECT_EQ(kind_of([&] { model(rows(300, 9)); }), ErrorKind::io) << rows_more;
    file.rows_until_failure = INT64_MAX;
    EXPECT_EQ(model(rows(3, 10)), all(rows(3, 10))) << rows_more;
    EXPECT_EQ(model(rows(300, 9)), all(rows(300, 9))) << rows_more;
  }
}

TEST(ExpertCache, AChangedFileIsNoticedWhenItIsReadAgain) {
  File file;
  const Model model(file, bytes_of().least);
  file.changed = true;
  EXPECT_EQ(kind_of([&] { model(rows(300, 9)); }), ErrorKind::io);
  EXPECT_EQ(kind_of([&] { model(rows(300, 9)); }), ErrorKind::io);
}

TEST(ExpertCache, DamageIsFoundAtTheLoad) {
  const auto load = [](std::size_t damaged) {
    File file;
    Weights w = file.weights({Format::F32});
    w.matrices[damaged].read = [read = w.matrices[damaged].read](std::int64_t first, std::int64_t count, std::uint8_t* out) {
      read(first, count, out);
      if (first + count == kCols * kExperts) reinterpret_cast<float*>(out)[0] = std::numeric_limits<float>::quiet_NaN();
    };
    const Program p = layers();
    const Program* const programs[] = {&p};
    make_backend(2)->pack(w, programs, {}, Cancel(), bytes_of({Format::F32}).least);
  };
  EXPECT_EQ(kind_of([&] { load(0); }), ErrorKind::numeric);                // the first layer, which is kept
  EXPECT_EQ(kind_of([&] { load(3 * kLayers - 1); }), ErrorKind::numeric);  // the last layer, which is not
}

TEST(ExpertCache, StoppedRunsLeaveItWhole) {
  File all_file, file;
  const Model all(all_file, kAllExperts), model(file, bytes_of().least);
  const auto in = rows(300, 11), expected = all(in);
  for (int i = 0; i < 20; ++i) {
    Cancel cancel;
    std::thread stop([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * i));
      cancel.request();
    });
    try {
      EXPECT_EQ(model(in, Crew::team, cancel), expected);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::cancelled);
    }
    stop.join();
  }
  EXPECT_EQ(model(in), expected);
}

TEST(ExpertCache, RunsBesideEachOtherTakeTurns) {
  File all_file, file;
  const Model all(all_file, kAllExperts), model(file, bytes_of().least, {Format::Q4_K}, 4);
  std::vector<std::vector<float>> found(16);
  model.backend->parallel(
      16, [&](std::int64_t i, int) { found[std::size_t(i)] = model(rows(2 + int(i), std::uint64_t(i)), Crew::solo); }, Cancel());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], all(rows(2 + int(i), i))) << i;
}

// A thread of the parent may use the cache while the process forks. The child takes it over.
TEST(ExpertCache, AChildOfAForkTakesItOver) {
  File all_file, file;
  const Model all(all_file, kAllExperts), model(file, bytes_of().least);
  const auto in = rows(300, 12), expected = all(in);
  ExpertPass held(model.packed().cache());
  const std::vector<std::int32_t> experts = {0, 1, 2, 3, 4, 5, 6, 7};
  ASSERT_GT(held.begin(kLayers - 1, experts), 0);  // panels that nobody reads in the child
  const pid_t child = ::fork();
  if (child == 0) ::_exit(model(in) == expected ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace pumice::cpu
