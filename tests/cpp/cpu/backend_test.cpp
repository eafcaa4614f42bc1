// On whole programs, the CPU backend must agree with the reference backend. Its bits must be the same for any number of threads, any batch
// and any division of a prompt into runs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <numeric>
#include <thread>

#include "cases.h"
#include "core/checked.h"
#include "cpu/cache_store.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_weights.h"
#include "cpu/scratch.h"
#include "os/limits.h"
#include "patience.h"
#include "reference/reference_backend.h"

namespace pumice::cpu {
namespace {

using cases::Random;

// ---------------------------------------------------------------- models
// Makes weights with random values, packed into the format that the caller names.
struct Builder {
  explicit Builder(std::uint64_t seed) : random(seed) {}

  MatrixId matrix(const std::string& name, Format format, std::int64_t rows, std::int64_t cols) {
    auto bytes = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(rows * row_bytes(format, cols)));
    pack(format, random.normals(rows * cols, 1 / std::sqrt(static_cast<float>(cols))).data(), rows * cols, bytes->data());
    return add(name, format, rows, cols, bytes);
  }
  MatrixId add(const std::string& name, Format format, std::int64_t rows, std::int64_t cols,
               std::shared_ptr<std::vector<std::uint8_t>> bytes) {
    const std::int64_t stride = row_bytes(format, cols);
    weights.matrices.push_back({name, format, rows, cols, [bytes, stride](std::int64_t first, std::int64_t count, std::uint8_t* out) {
                                  std::memcpy(out, bytes->data() + first * stride, static_cast<std::size_t>(count * stride));
                                }});
    return static_cast<MatrixId>(weights.matrices.size() - 1);
  }
  VectorId vector(const std::string& name, std::int64_t n, float offset) {
    weights.vectors.push_back({name, random.normals(n, 0.1f, offset)});
    return static_cast<VectorId>(weights.vectors.size() - 1);
  }

  Random random;
  Weights weights;
};

struct DecoderShape {
  Format format = Format::F32, other = Format::F32;  // `other` is the format of the matrices v and down
  int layers = 2, heads = 4, kv_heads = 2, head_dim = 16, hidden = 64, ffn = 96, vocab = 200, window = 0;
  float softcap = 0;
};
struct Decoder {
  Weights weights;
  Program body, all_rows, head, log_probs;  // all_rows is the body without Select
};

Decoder decoder(const DecoderShape& shape) {
  Builder b(shape.layers * 1000 + shape.hidden + static_cast<int>(shape.format));
  const int d = shape.hidden, q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
  Decoder model;
  Program& p = model.body;
  p.name = "body";
  p.slots = {{Rows::tokens, d}, {Rows::tokens, d},         {Rows::tokens, q + 2 * kv},
             {Rows::tokens, q}, {Rows::tokens, shape.ffn}, {Rows::selected, d}};
  const View x{0, 0, d}, h{1, 0, d}, qkv{2, 0, q + 2 * kv}, a{3, 0, q}, f{4, 0, shape.ffn}, last{5, 0, d};
  RopeTable rope;
  for (int j = 0; j < shape.head_dim / 2; ++j) rope.inv_freq.push_back(std::pow(10000.0f, -2.0f * j / shape.head_dim));
  const MatrixId embedding = b.matrix("embedding", shape.other, shape.vocab, d);
  p.ops.push_back(Embed{x, embedding, MatrixId::none, MatrixId::none, 2.0f});
  for (int l = 0; l < shape.layers; ++l) {
    p.caches.push_back({shape.kv_heads, shape.head_dim, shape.head_dim});
    const auto cache = static_cast<CacheId>(l);
    p.ops.push_back(Norm{x, h, {}, b.vector("norm1", d, 1), VectorId::none, NormKind::rms});
    p.ops.push_back(Linear{h,
                           qkv,
                           {{b.matrix("q", shape.format, q, d)},
                            {b.matrix("k", shape.format, kv, d), b.vector("k.bias", kv, 0)},
                            {b.matrix("v", shape.other, kv, d)}}});
    p.ops.push_back(Norm{{2, 0, q}, {2, 0, q}, {}, b.vector("q_norm", shape.head_dim, 1), VectorId::none, NormKind::rms, shape.head_dim});
    p.ops.push_back(Rope{{2, 0, q}, shape.head_dim, rope});
    p.ops.push_back(Rope{{2, q, kv}, shape.head_dim, rope});
    p.ops.push_back(Store{{2, q, kv}, {2, q + kv, kv}, cache});
    Attend attend;
    attend.q = {2, 0, q};
    attend.out = a;
    attend.cache = cache;
    attend.key_dim = attend.value_dim = shape.head_dim;
    attend.kv_heads = shape.kv_heads;
    attend.causal = true;
    attend.window = l % 2 == 0 ? shape.window : 0;
    attend.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    attend.softcap = shape.softcap;
    p.ops.push_back(attend);
    p.ops.push_back(Linear{a, x, {{b.matrix("o", shape.format, d, q)}}, Activation::none, x});
    p.ops.push_back(Norm{x, h, {}, b.vector("norm2", d, 1), VectorId::none, NormKind::rms});
    p.ops.push_back(GatedLinear{h, f, b.matrix("gate", shape.format, shape.ffn, d), b.matrix("up", shape.format, shape.ffn, d)});
    p.ops.push_back(Linear{f, x, {{b.matrix("down", shape.other, d, shape.ffn)}}, Activation::none, x});
  }
  model.all_rows = p;
  model.all_rows.output = 0;
  p.ops.push_back(Select{x, last});
  p.output = 5;

  model.head.name = "head";
  model.head.slots = {{Rows::tokens, d}, {Rows::tokens, d}, {Rows::tokens, shape.vocab}, {Rows::tokens, 1}};
  const VectorId norm = b.vector("final_norm", d, 1);
  model.head.ops = {Norm{{0, 0, d}, {1, 0, d}, {}, norm, VectorId::none, NormKind::rms},
                    Linear{{1, 0, d}, {2, 0, shape.vocab}, {{embedding}}}};
  model.head.input = 0;
  model.head.output = 2;
  model.log_probs = model.head;
  model.log_probs.name = "log_probs";
  model.log_probs.ops.push_back(LogProb{{2, 0, shape.vocab}, {3, 0, 1}});
  model.log_probs.output = 3;
  model.weights = b.weights;
  return model;
}

struct Encoder {
  Weights weights;
  Program program;
  int hidden, vocab;
};
Encoder encoder(Format format, PoolKind pool, int window = 0, int layers = 2) {
  const int d = 64, heads = 4, ffn = 160, vocab = 100;
  Builder b(77);
  Program p;
  p.name = "encoder";
  p.slots = {{Rows::tokens, d}, {Rows::tokens, d}, {Rows::tokens, 3 * d}, {Rows::tokens, ffn}, {Rows::segments, d}};
  const View x{0, 0, d}, h{1, 0, d}, qkv{2, 0, 3 * d}, f{3, 0, ffn};
  p.ops.push_back(
      Embed{x, b.matrix("words", format, vocab, d), b.matrix("positions", Format::F32, 600, d), b.matrix("types", Format::F32, 2, d)});
  const auto norm = [&](const View& in, const View& out) {
    p.ops.push_back(Norm{in, out, {}, b.vector("norm", d, 1), b.vector("norm.bias", d, 0), NormKind::layer, 0, 1e-12f});
  };
  norm(x, x);
  for (int l = 0; l < layers; ++l) {
    p.ops.push_back(Linear{x,
                           qkv,
                           {{b.matrix("q", format, d, d), b.vector("bq", d, 0)},
                            {b.matrix("k", format, d, d), b.vector("bk", d, 0)},
                            {b.matrix("v", format, d, d), b.vector("bv", d, 0)}}});
    Attend attend;
    attend.q = {2, 0, d};
    attend.k = {2, d, d};
    attend.v = {2, 2 * d, d};
    attend.out = h;
    attend.key_dim = attend.value_dim = d / heads;
    attend.kv_heads = heads;
    attend.scale = 0.25f;
    attend.window = window;
    p.ops.push_back(attend);
    p.ops.push_back(Linear{h, x, {{b.matrix("o", format, d, d), b.vector("bo", d, 0)}}, Activation::none, x});
    norm(x, x);
    p.ops.push_back(Linear{x, f, {{b.matrix("up", format, ffn, d), b.vector("bu", ffn, 0)}}, Activation::gelu});
    p.ops.push_back(Linear{f, x, {{b.matrix("down", format, d, ffn), b.vector("bd", d, 0)}}, Activation::none, x});
    norm(x, x);
  }
  p.ops.push_back(Pool{x, {4, 0, d}, pool});
  p.output = 4;
  return {b.weights, p, d, vocab};
}

// ---------------------------------------------------------------- running
std::vector<std::int32_t> ids_of(std::uint64_t seed, std::int64_t n, std::int64_t vocab) {
  Random random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (auto& id : ids) id = static_cast<std::int32_t>(random.below(vocab));
  return ids;
}

// Fills all pages with bytes that are NaN in every format, so that a kernel that reads an unwritten page returns NaN.
void poison(CacheStore& store) {
  if (auto* pages = dynamic_cast<PageStore*>(&store)) {
    for (std::int32_t p = 0; p < pages->pages(); ++p) std::memset(pages->page(p), 0xFF, pages->page_bytes());
  }
}

struct Session {
  Session(std::shared_ptr<Backend> backend, const Weights& w, const Program& program, Compute compute = Compute::automatic,
          KvFormat kv = KvFormat::f16, Crew crew = Crew::team)
      : backend(std::move(backend)), program(program) {
    weights = this->backend->pack(w, {}, {}, cancel);
    executable = this->backend->prepare(program, weights, compute);
    workspace = this->backend->make_workspace(crew);
    caches = this->backend->make_caches(program, kv);
    caches->reserve(64);
    poison(*caches);
  }
  // Runs the program and returns the output slot, which has `out_rows` rows.
  std::vector<float> run(const Batch& batch, std::size_t out_rows, std::span<const float> in = {}) {
    std::vector<float> out(out_rows * static_cast<std::size_t>(program.slots[static_cast<std::size_t>(program.output)].width));
    executable->run(*workspace, caches.get(), batch, {in, out}, cancel);
    return out;
  }

  Cancel cancel;
  std::shared_ptr<Backend> backend;
  Program program;
  std::shared_ptr<const DeviceWeights> weights;
  std::shared_ptr<const Executable> executable;
  std::unique_ptr<Workspace> workspace;
  std::unique_ptr<CacheStore> caches;
};

std::vector<std::int32_t> pages_from(std::int32_t first, std::int64_t positions) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(ceil_div(positions, kPageTokens)));
  std::iota(pages.begin(), pages.end(), first);
  std::reverse(pages.begin(), pages.end());  // pages need not be in ascending order
  return pages;
}

// Runs a batch of one sequence that already has `past` positions in the cache, and returns the output rows.
std::vector<float> advance(Session& s, std::span<const std::int32_t> ids, std::int32_t past, std::span<const std::int32_t> pages) {
  const Segment segment{0, static_cast<std::int32_t>(ids.size()), past, pages};
  Batch batch;
  batch.rows = segment.rows;
  batch.ids = ids;
  batch.segments = {&segment, 1};
  return s.run(batch, ids.size());
}

double nmse(const std::vector<float>& truth, const std::vector<float>& found) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    error += (double(truth[i]) - found[i]) * (double(truth[i]) - found[i]);
    power += double(truth[i]) * truth[i];
  }
  return error / power;
}

std::shared_ptr<Backend> reference_backend() { return std::make_shared<reference::ReferenceBackend>(); }

// ---------------------------------------------------------------- against the truth
struct TruthCase {
  const char* name;
  Format format, other;
  Compute compute;
  KvFormat kv;
  double limit;
};
std::ostream& operator<<(std::ostream& out, const TruthCase& c) { return out << c.name; }
class Truth : public testing::TestWithParam<TruthCase> {};

TEST_P(Truth, DecoderOfTwoSequences) {
  const TruthCase& c = GetParam();
  DecoderShape shape;
  shape.format = c.format;
  shape.other = c.other;
  shape.window = 100;
  shape.softcap = 20;
  const Decoder model = decoder(shape);
  std::vector<float> found[2];
  for (int device = 0; device < 2; ++device) {
    Session s(device == 0 ? reference_backend() : make_backend(2), model.weights, model.all_rows, c.compute, c.kv);
    const auto ids = ids_of(1, 290 + 45, shape.vocab);
    const auto first = pages_from(3, 290), second = pages_from(20, 45);
    const Segment segments[] = {{0, 290, 0, first}, {290, 45, 0, second}};
    Batch batch;
    batch.rows = 335;
    batch.ids = ids;
    batch.segments = segments;
    found[device] = s.run(batch, 335);
  }
  const FormatKernels& k = kernels().matrix[c.format];
  const bool rounds = c.compute == Compute::automatic && k.product_bf16 != k.product_f32;
  EXPECT_LT(nmse(found[0], found[1]), rounds ? 1e-4 : c.limit);
}

INSTANTIATE_TEST_SUITE_P(Formats, Truth,
                         testing::Values(TruthCase{"F32", Format::F32, Format::F32, Compute::automatic, KvFormat::f32, 1e-10},
                                         TruthCase{"F32_f16cache", Format::F32, Format::F32, Compute::automatic, KvFormat::f16, 1e-6},
                                         TruthCase{"F32_q8cache", Format::F32, Format::F32, Compute::automatic, KvFormat::q8_0, 2e-3},
                                         TruthCase{"BF16_F16", Format::BF16, Format::F16, Compute::automatic, KvFormat::f32, 1e-10},
                                         TruthCase{"BF16_float32", Format::BF16, Format::F16, Compute::float32, KvFormat::f32, 1e-10},
                                         TruthCase{"Q8_0_float32", Format::Q8_0, Format::Q4_0, Compute::float32, KvFormat::f32, 1e-10},
                                         TruthCase{"Q8_0_int8", Format::Q8_0, Format::Q8_0, Compute::automatic, KvFormat::f32, 2e-3},
                                         TruthCase{"Q4_0_F32_mixed", Format::Q4_0, Format::F32, Compute::automatic, KvFormat::f16, 2e-3}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Backend, EncodersMatchTheReference) {
  for (const PoolKind pool :
       {PoolKind::mean, PoolKind::cls, PoolKind::last, PoolKind::max, PoolKind::mean_sqrt_len, PoolKind::weighted_mean}) {
    for (const int window : {0, 20}) {
      const Encoder model = encoder(Format::F32, pool, window);
      const auto ids = ids_of(2, 1 + 33 + 300 + 64, model.vocab);
      std::vector<std::int32_t> types(ids.size());
      for (std::size_t i = 0; i < types.size(); ++i) types[i] = i % 3 == 0;
      const Segment segments[] = {{0, 1, 0, {}}, {1, 33, 0, {}}, {34, 300, 0, {}}, {334, 64, 0, {}}};
      Batch batch;
      batch.rows = 398;
      batch.ids = ids;
      batch.types = types;
      batch.segments = segments;
      Session truth(reference_backend(), model.weights, model.program), cpu(make_backend(3), model.weights, model.program);
      EXPECT_LT(nmse(truth.run(batch, 4), cpu.run(batch, 4)), 1e-9) << static_cast<int>(pool) << " window " << window;
    }
  }
}

TEST(Backend, HeadAndLogProbabilitiesMatchTheReference) {
  DecoderShape shape;
  shape.vocab = 777;
  const Decoder model = decoder(shape);
  const std::int64_t rows = 101;  // several blocks of rows, the last one incomplete
  const auto hidden = Random(5).normals(rows * shape.hidden);
  const auto targets = ids_of(6, rows, shape.vocab);
  Batch batch;
  batch.rows = rows;
  batch.ids = targets;
  Session truth(reference_backend(), model.weights, model.log_probs), cpu(make_backend(2), model.weights, model.log_probs);
  const auto expected = truth.run(batch, rows, hidden), found = cpu.run(batch, rows, hidden);
  for (std::size_t r = 0; r < expected.size(); ++r) EXPECT_NEAR(expected[r], found[r], 2e-5);
  for (std::int64_t r = 0; r < rows; r += 7) {  // a row that runs alone must give the same bits
    Batch one;
    one.rows = 1;
    one.ids = std::span(targets).subspan(static_cast<std::size_t>(r), 1);
    EXPECT_EQ(
        cpu.run(one, 1, std::span(hidden).subspan(static_cast<std::size_t>(r * shape.hidden), static_cast<std::size_t>(shape.hidden)))[0],
        found[static_cast<std::size_t>(r)]);
  }
  Session head(make_backend(2), model.weights, model.head), head_truth(reference_backend(), model.weights, model.head);
  batch.ids = {};
  EXPECT_LT(nmse(head_truth.run(batch, rows, hidden), head.run(batch, rows, hidden)), 1e-11);
}

// ---------------------------------------------------------------- bits
const DecoderShape kMixed = [] {
  DecoderShape shape;
  shape.format = Format::Q4_0;
  shape.other = Format::Q8_0;
  shape.window = 70;
  shape.heads = 6;  // 3 query heads share a kv head, and 3 does not divide kMaxQueries
  return shape;
}();

TEST(Backend, TheSameBitsForAnyNumberOfThreads) {
  for (const KvFormat kv : {KvFormat::f16, KvFormat::f32, KvFormat::q8_0}) {
    const Decoder model = decoder(kMixed);
    const auto ids = ids_of(3, 700, kMixed.vocab);
    const auto pages = pages_from(0, 701);
    std::vector<float> first, first_step;
    for (const int threads : {1, 2, 3, 7}) {
      for (const Crew crew : {Crew::team, Crew::solo}) {
        Session s(make_backend(threads), model.weights, model.all_rows, Compute::automatic, kv, crew);
        const auto found = advance(s, ids, 0, pages);
        const auto step = advance(s, std::span(ids).first(1), 700, pages);  // one query, whose keys are divided among the threads
        if (first.empty()) first = found, first_step = step;
        EXPECT_EQ(found, first) << threads;
        EXPECT_EQ(step, first_step) << threads;
      }
    }
    for (const float value : first) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(Backend, APromptInOneGoInPiecesAndTokenByToken) {
  for (const float softcap : {0.0f, 15.0f}) {
    DecoderShape shape = kMixed;
    shape.softcap = softcap;
    const Decoder model = decoder(shape);
    const std::int32_t n = 300;
    const auto ids = ids_of(4, n, shape.vocab);
    const auto pages = pages_from(5, n);
    Session s(make_backend(2), model.weights, model.all_rows);
    const auto whole = advance(s, ids, 0, pages);
    for (const std::vector<std::int32_t>& cuts : {std::vector<std::int32_t>{256}, {1, 2, 3, 35, 255, 257}, {64, 128, 192, 256}}) {
      poison(*s.caches);
      std::vector<float> pieces;
      std::int32_t past = 0;
      auto ends = cuts;
      ends.push_back(n);
      for (const std::int32_t end : ends) {
        const auto part =
            advance(s, std::span(ids).subspan(static_cast<std::size_t>(past), static_cast<std::size_t>(end - past)), past, pages);
        pieces.insert(pieces.end(), part.begin(), part.end());
        past = end;
      }
      EXPECT_EQ(pieces, whole);
    }
    poison(*s.caches);
    std::vector<float> steps;
    for (std::int32_t i = 0; i < n; ++i) {
      const auto row = advance(s, std::span(ids).subspan(static_cast<std::size_t>(i), 1), i, pages);
      steps.insert(steps.end(), row.begin(), row.end());
    }
    EXPECT_EQ(steps, whole);
  }
}

TEST(Backend, RowsDoNotDependOnTheirBatch) {
  const Decoder model = decoder(kMixed);
  Session s(make_backend(2), model.weights, model.body);
  struct Text {
    std::int32_t past, rows;
  };
  const Text texts[] = {{0, 40}, {0, 1}, {31, 2}, {260, 1}, {0, 129}, {7, 90}};
  std::vector<std::int32_t> ids;
  std::vector<Segment> segments;
  std::vector<std::vector<std::int32_t>> pages;
  std::vector<std::int32_t> selected;
  std::vector<std::vector<float>> alone;
  for (std::int32_t next_page = 0; const Text& text : texts) {
    pages.push_back(pages_from(next_page, text.past + text.rows));
    next_page += static_cast<std::int32_t>(pages.back().size());
  }
  const auto one = [&](std::size_t t, std::span<const std::int32_t> own, std::int32_t past) {
    const Segment segment{0, static_cast<std::int32_t>(own.size()), past, pages[t]};
    const std::int32_t last = segment.rows - 1;
    Batch batch;
    batch.rows = segment.rows;
    batch.ids = own;
    batch.segments = {&segment, 1};
    batch.selected = {&last, 1};
    return s.run(batch, 1);
  };
  for (std::size_t t = 0; t < std::size(texts); ++t) {
    const auto own = ids_of(100 + t, texts[t].past + texts[t].rows, kMixed.vocab);
    const auto split = static_cast<std::size_t>(texts[t].past);
    if (split > 0) one(t, std::span(own).first(split), 0);
    alone.push_back(one(t, std::span(own).subspan(split), texts[t].past));
    segments.push_back({static_cast<std::int32_t>(ids.size()), texts[t].rows, texts[t].past, pages[t]});
    ids.insert(ids.end(), own.begin() + texts[t].past, own.end());
    selected.push_back(static_cast<std::int32_t>(ids.size()) - 1);
  }
  Batch batch;
  batch.rows = static_cast<std::int32_t>(ids.size());
  batch.ids = ids;
  batch.segments = segments;
  batch.selected = selected;
  const auto together = s.run(batch, std::size(texts));
  for (std::size_t t = 0; t < std::size(texts); ++t) {
    const auto width = static_cast<std::ptrdiff_t>(kMixed.hidden), at = static_cast<std::ptrdiff_t>(t) * width;
    EXPECT_EQ(std::vector<float>(together.begin() + at, together.begin() + at + width), alone[t]) << "text " << t;
  }
}

TEST(Backend, EncodersGiveEachTextItsBitsInAnyBatch) {
  for (const Format format : {Format::F32, Format::Q8_0}) {
    const Encoder model = encoder(format, PoolKind::mean);
    Session s(make_backend(2), model.weights, model.program),
        solo(make_backend(2), model.weights, model.program, Compute::automatic, KvFormat::f16, Crew::solo);
    std::vector<std::int32_t> lengths = {5, 1, 200, 33, 513, 17, 96, 97};
    std::vector<std::vector<float>> alone;
    std::vector<std::vector<std::int32_t>> texts;
    const auto run = [&](Session& session, const std::vector<std::size_t>& which) {
      std::vector<std::int32_t> ids;
      std::vector<Segment> segments;
      for (const std::size_t t : which) {
        segments.push_back({static_cast<std::int32_t>(ids.size()), static_cast<std::int32_t>(texts[t].size()), 0, {}});
        ids.insert(ids.end(), texts[t].begin(), texts[t].end());
      }
      Batch batch;
      batch.rows = static_cast<std::int32_t>(ids.size());
      batch.ids = ids;
      batch.segments = segments;
      return session.run(batch, which.size());
    };
    for (std::size_t t = 0; t < lengths.size(); ++t) {
      texts.push_back(ids_of(t + 50, lengths[t], model.vocab));
      alone.push_back(run(s, {t}));
    }
    for (const auto& which : {std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7}, {4, 2}, {7, 6, 5, 1, 0}}) {
      for (Session* session : {&s, &solo}) {
        const auto found = run(*session, which);
        for (std::size_t i = 0; i < which.size(); ++i) {
          const auto at = static_cast<std::ptrdiff_t>(i) * model.hidden;
          EXPECT_EQ(std::vector<float>(found.begin() + at, found.begin() + at + model.hidden), alone[which[i]]);
        }
      }
    }
  }
}

TEST(Backend, SharedPrefixAndCopiedPages) {
  const Decoder model = decoder(kMixed);
  Session s(make_backend(2), model.weights, model.all_rows);
  const std::int32_t prefix = 80, tail = 30;  // the prefix ends inside the third page of 32 positions
  const auto shared = ids_of(8, prefix, kMixed.vocab);
  std::vector<std::vector<float>> alone;
  std::vector<std::vector<std::int32_t>> tails;
  for (int t = 0; t < 2; ++t) {
    tails.push_back(ids_of(9 + static_cast<std::uint64_t>(t), tail, kMixed.vocab));
    auto ids = shared;
    ids.insert(ids.end(), tails.back().begin(), tails.back().end());
    const auto all = advance(s, ids, 0, pages_from(40, prefix + tail));
    alone.emplace_back(all.begin() + prefix * kMixed.hidden, all.end());
  }
  poison(*s.caches);
  advance(s, shared, 0, std::vector<std::int32_t>{7, 2, 9});
  s.caches->copy_page(9, 30);  // the second text gets a copy of the half-full page
  const std::vector<std::int32_t> pages[] = {{7, 2, 9, 11}, {7, 2, 30, 4}};
  std::vector<std::int32_t> ids = tails[0];
  ids.insert(ids.end(), tails[1].begin(), tails[1].end());
  const Segment segments[] = {{0, tail, prefix, pages[0]}, {tail, tail, prefix, pages[1]}};
  Batch batch;
  batch.rows = 2 * tail;
  batch.ids = ids;
  batch.segments = segments;
  const auto both = s.run(batch, 2 * static_cast<std::size_t>(tail));
  auto expected = alone[0];
  expected.insert(expected.end(), alone[1].begin(), alone[1].end());
  EXPECT_EQ(both, expected);
}

// If a program is split in two and the second gets the hidden rows of the first, the result must have the same bits as from one program.
TEST(Backend, ALayerSplitGivesTheSameBits) {
  const Decoder model = decoder(kMixed);
  Session whole(make_backend(2), model.weights, model.all_rows);
  const auto ids = ids_of(12, 50, kMixed.vocab);
  const auto pages = pages_from(0, 50);
  const auto expected = advance(whole, ids, 0, pages);
  const auto at = static_cast<std::ptrdiff_t>(1 + (model.all_rows.ops.size() - 1) / 2);
  Program first = model.all_rows, second = model.all_rows;
  first.ops.erase(first.ops.begin() + at, first.ops.end());
  second.ops.erase(second.ops.begin(), second.ops.begin() + at);
  second.input = 0;
  Session one(make_backend(2), model.weights, first), two(make_backend(1), model.weights, second);
  auto border = advance(one, ids, 0, pages);
  const Segment segment{0, 50, 0, pages};
  Batch batch;
  batch.rows = 50;
  batch.segments = {&segment, 1};
  EXPECT_EQ(two.run(batch, 50, border), expected);
  // Input and output may be the same memory.
  two.executable->run(*two.workspace, two.caches.get(), batch, {border, border}, two.cancel);
  EXPECT_EQ(border, expected);
}

// ---------------------------------------------------------------- callers, forks, cancel
TEST(Backend, ManyCallersGetWhatOneGets) {
  const Encoder model = encoder(Format::Q8_0, PoolKind::mean);
  Session s(make_backend(2), model.weights, model.program);
  const auto ids = ids_of(20, 60, model.vocab);
  const Segment segment{0, 60, 0, {}};
  Batch batch;
  batch.rows = 60;
  batch.ids = ids;
  batch.segments = {&segment, 1};
  const auto expected = s.run(batch, 1);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 12; ++c) {
    callers.emplace_back([&, c] {
      const auto own = s.backend->make_workspace(c % 2 == 0 ? Crew::team : Crew::solo);
      std::vector<float> out(expected.size());
      for (int i = 0; i < 15; ++i) {
        s.executable->run(*own, nullptr, batch, {{}, out}, s.cancel);
        wrong += out != expected;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  std::vector<std::unique_ptr<Workspace>> spaces;
  for (int worker = 0; worker < s.backend->workers(); ++worker) spaces.push_back(s.backend->make_workspace(Crew::solo));
  s.backend->parallel(
      40,
      [&](std::int64_t, int worker) {
        std::vector<float> out(expected.size());
        s.executable->run(*spaces[static_cast<std::size_t>(worker)], nullptr, batch, {{}, out}, s.cancel);
        wrong += out != expected;
      },
      s.cancel);
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Backend, AForkedChildGetsTheSameBits) {
  const Decoder model = decoder(kMixed);
  Session s(make_backend(3), model.weights, model.all_rows);
  const auto ids = ids_of(21, 120, kMixed.vocab);
  const auto pages = pages_from(0, 120);
  const auto expected = advance(s, ids, 0, pages);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(advance(s, ids, 0, pages) == expected ? 42 : 1);
  EXPECT_EQ(patience::exit_code(child), 42);
  EXPECT_EQ(advance(s, ids, 0, pages), expected);
}

TEST(Backend, CancelStopsALongPromptSoonAndTheNextRunIsWhole) {
  DecoderShape shape;
  shape.layers = 12;
  shape.hidden = shape.ffn = 512;
  shape.heads = 8;
  shape.head_dim = 64;
  shape.format = shape.other = Format::Q8_0;
  const Decoder model = decoder(shape);
  Session s(make_backend(2), model.weights, model.all_rows);
  const std::int32_t n = 512;
  const auto ids = ids_of(22, n, shape.vocab);
  const auto pages = pages_from(0, n);
  const auto expected = advance(s, ids, 0, pages);
  const Segment segment{0, n, 0, pages};
  Batch batch;
  batch.rows = n;
  batch.ids = ids;
  batch.segments = {&segment, 1};
  std::vector<float> out(static_cast<std::size_t>(n) * 512);
  std::vector<double> works, walls;  // seconds from a cancellation to the error: processor time of the process, and wall time
  for (const int after_us : {0, 300, 2000, 6000, 10000}) {
    Cancel cancel;
    patience::Watch watch;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(after_us));
      watch = {};
      cancel.request();
    });
    bool cancelled = false;
    try {
      while (!cancelled) s.executable->run(*s.workspace, s.caches.get(), batch, {{}, out}, cancel);
    } catch (const Error& error) {
      cancelled = error.kind() == ErrorKind::cancelled;
    }
    other.join();  // it has nothing left to do
    works.push_back(watch.process());
    walls.push_back(watch.wall());
    EXPECT_TRUE(cancelled);
  }
  std::ranges::sort(works);
  std::ranges::sort(walls);
  std::cout << "  cancelled after " << 1e3 * works[2] << " ms of processor time, " << 1e3 * works.back() << " at most; " << 1e3 * walls[2]
            << " ms of wall time, " << 1e3 * walls.back() << " at most\n";
  EXPECT_LT(works[2], 2 * 0.1) << "two threads";
  EXPECT_LT(works.back(), 2 * 0.5);
  if (patience::asserts_walls()) {
    EXPECT_LT(walls.back(), 0.5);
  }
  EXPECT_EQ(advance(s, ids, 0, pages), expected);
}

// ---------------------------------------------------------------- memory
TEST(Backend, CostIsWhatIsAllocated) {
  const auto backend = make_backend(2);
  const Decoder d = decoder(kMixed);
  const Encoder e = encoder(Format::F32, PoolKind::mean);
  for (const std::int32_t rows : {1, 37, 512}) {
    for (const auto* program : {&d.body, &d.all_rows, &e.program}) {
      const Weights& weights = program == &e.program ? e.weights : d.weights;
      const Cost cost = backend->cost(*program, shapes_of(weights), KvFormat::f16, rows);
      Session s(backend, weights, *program, Compute::automatic, KvFormat::f16);
      const auto ids = ids_of(30, rows, 100);
      const auto pages = pages_from(0, rows);
      std::vector<std::int32_t> selected(static_cast<std::size_t>(rows));
      std::iota(selected.begin(), selected.end(), 0);
      const Segment segment{0, rows, 0, pages};
      Batch batch;
      batch.rows = rows;
      batch.ids = ids;
      batch.segments = {&segment, 1};
      batch.selected = selected;
      s.run(batch, program == &e.program ? 1 : static_cast<std::size_t>(rows));
      EXPECT_EQ(cost.page, s.caches->page_bytes());
      // cost() assumes that all rows are selected, as they are in this batch. Selected rows are written to the caller's memory.
      EXPECT_EQ(cost.scratch, dynamic_cast<ScratchSpace&>(*s.workspace).bytes()) << program->name << ", " << rows << " rows";
    }
  }
  std::uint64_t vectors = 0;
  for (const Vector& v : d.weights.vectors) vectors += v.values.size() * sizeof(float);
  const Cancel cancel;
  EXPECT_EQ(backend->cost(d.body, shapes_of(d.weights), KvFormat::f16, 1).weights + vectors,
            backend->pack(d.weights, {}, {}, cancel)->bytes());
}

TEST(Backend, LogProbabilitiesNeverMakeARowsByVocabularyArray) {
  DecoderShape shape;
  shape.layers = 1;
  shape.vocab = 30'000;
  const Decoder model = decoder(shape);
  const auto backend = make_backend(2);
  const std::uint64_t few = backend->cost(model.log_probs, shapes_of(model.weights), KvFormat::f16, 64).scratch;
  const std::uint64_t many = backend->cost(model.log_probs, shapes_of(model.weights), KvFormat::f16, 2048).scratch;
  EXPECT_LT(many, few + 4 * 2048 * 4 * static_cast<std::uint64_t>(shape.hidden));
  EXPECT_LT(few, 64u * 30'000 * 4);
}

TEST(Backend, ScratchOfALongPromptIsGivenBack) {
  DecoderShape shape;
  shape.ffn = 4096;
  const Decoder model = decoder(shape);
  Session s(make_backend(2), model.weights, model.all_rows);
  const auto ids = ids_of(31, 2040, shape.vocab);
  const auto pages = pages_from(0, 2048);
  advance(s, ids, 0, pages);
  const auto& space = dynamic_cast<ScratchSpace&>(*s.workspace);
  const std::uint64_t large = space.bytes();
  EXPECT_GT(large, 32u << 20);
  advance(s, std::span(ids).first(1), 2040, pages);
  EXPECT_EQ(space.bytes(), large) << "one small run keeps it";
  for (int i = 0; i < 20; ++i) advance(s, std::span(ids).first(1), 2040, pages);
  EXPECT_LT(space.bytes(), large / 4);
}

TEST(Backend, CachePagesNeverMoveAndAreCopiedWhole) {
  const Program program{.caches = {{2, 64, 64}, {1, 128, 96}, {3, 16, 16}}, .states = {{4, 32, 20}, {1, 3, 100}}};
  for (const KvFormat format : {KvFormat::f16, KvFormat::f32, KvFormat::q8_0}) {
    PageStore store(program, format);
    store.reserve(3);
    std::uint8_t* second = store.page(1);
    std::memset(second, 0x5A, store.page_bytes());
    store.reserve(5000);
    EXPECT_GE(store.pages(), 5000);
    EXPECT_EQ(store.page(1), second);
    store.copy_page(1, 4999);
    EXPECT_EQ(std::memcmp(store.page(4999), second, store.page_bytes()), 0);
    EXPECT_THROW(store.copy_page(0, store.pages()), Error);
    EXPECT_THROW(store.copy_page(-1, 0), Error);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(store.page(4321)) % 64, 0u);
  }
  EXPECT_THROW(PageStore({.caches = {{0, 64, 64}}}, KvFormat::f16), Error);
  EXPECT_THROW(PageStore({.caches = {{1, 64, -1}}}, KvFormat::f16), Error);
}

TEST(Backend, StatesNeverMoveAndAreReadAndWrittenWhole) {
  PageStore store({.states = {{4, 32, 20}, {1, 3, 100}}}, KvFormat::f16);
  EXPECT_EQ(store.state_bytes(), (4 * 32 * 32 + 3 * 112) * sizeof(float)) << "columns are stored in strips of 16";
  EXPECT_EQ(store.page_bytes(), 0u);
  store.reserve_states(2);
  float* second = store.state(1, StateId{1});
  std::vector<std::uint8_t> bytes(store.state_bytes()), found(store.state_bytes());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i % 251);
  store.write_state(1, bytes.data());
  store.reserve_states(3000);
  EXPECT_GE(store.states(), 3000);
  EXPECT_EQ(store.state(1, StateId{1}), second);
  store.read_state(1, found.data());
  EXPECT_EQ(found, bytes);
  EXPECT_THROW(store.read_state(store.states(), found.data()), Error);
  EXPECT_THROW(store.write_state(-1, bytes.data()), Error);
}

// ---------------------------------------------------------------- weights
TEST(Weights, AreReadOnceInOrderOfProgressAndOnlyWhereUsed) {
  Builder b(40);
  b.matrix("a", Format::Q8_0, 1000, 512);
  b.matrix("b", Format::F32, 77, 300);
  b.weights.matrices.push_back({"never", Format::F32, 10, 10, [](std::int64_t, std::int64_t, std::uint8_t*) { FAIL() << "not used"; }});
  Program reader{.name = "reads a and b", .slots = {{Rows::tokens, 512}, {Rows::tokens, 300}, {Rows::tokens, 1000}}, .input = 0};
  reader.ops = {Linear{.in = {0, 0, 512}, .out = {2, 0, 1000}, .parts = {{MatrixId{0}}}}, Embed{.out = {1, 0, 300}, .tokens = MatrixId{1}}};
  reader.output = 2;
  const Program* const programs[] = {&reader};
  std::vector<std::uint64_t> steps;
  const Cancel cancel;
  const auto packed = make_backend(3)->pack(b.weights, programs, [&](std::uint64_t done) { steps.push_back(done); }, cancel);
  ASSERT_FALSE(steps.empty());
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.back(), 1000u * 544 + 77u * 1200);
  const auto& own = dynamic_cast<const PackedWeights&>(*packed);
  const PackedMatrix &a = own.matrices()[0], &second = own.matrices()[1];
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data) % 64, 0u);
  EXPECT_EQ(second.data, a.data + packed_bytes(shape_of(b.weights.matrices[0]))) << "one arena, in the model's order";
  EXPECT_EQ(own.matrices()[2].data, nullptr);
  std::vector<float> expected(512), found(512);
  std::vector<std::uint8_t> row(2048);
  for (std::size_t m = 0; m < 2; ++m) {
    const Matrix& source = b.weights.matrices[m];
    for (std::int64_t r = 0; r < source.rows; ++r) {
      source.read(r, 1, row.data());
      unpack(source.format, row.data(), source.cols, expected.data());
      own.matrices()[m].unpack_row(r, found.data());
      ASSERT_EQ(std::memcmp(expected.data(), found.data(), static_cast<std::size_t>(source.cols) * 4), 0) << source.name << " row " << r;
    }
  }
  Program p;
  p.slots = {{Rows::tokens, 10}};
  p.ops = {Embed{{0, 0, 10}, static_cast<MatrixId>(2)}};
  EXPECT_THROW(make_backend(1)->prepare(p, packed, Compute::automatic), Error) << "a matrix that was not loaded";
}

// pack() must refuse a NaN or an infinity in the weights or scales of any format, wherever the format stores them, and name the matrix and
// the row.
TEST(Weights, NonFiniteOnesAreRefusedInEveryFormat) {
  struct Place {
    Format format;
    int offset;
  };
  const Place places[] = {{Format::Q4_0, 0},    {Format::Q4_1, 0},   {Format::Q4_1, 2},      {Format::Q5_0, 0},    {Format::Q5_1, 0},
                          {Format::Q5_1, 2},    {Format::Q8_0, 0},   {Format::Q2_K, 80},     {Format::Q2_K, 82},   {Format::Q3_K, 108},
                          {Format::Q4_K, 0},    {Format::Q4_K, 2},   {Format::Q5_K, 0},      {Format::Q5_K, 2},    {Format::Q6_K, 208},
                          {Format::IQ4_NL, 0},  {Format::IQ4_XS, 0}, {Format::F16, 6},       {Format::F32, 8},     {Format::BF16, 4},
                          {Format::IQ1_E, 0},   {Format::IQ2_E, 0},  {Format::IQ3_XXS_E, 0}, {Format::IQ3_S_E, 0}, {Format::NVFP4_E, 0},
                          {Format::NVFP4_E, 4}, {Format::MXFP4, 0},  {Format::F8_E4M3, 0},   {Format::F8_E4M3, 4}, {Format::F8_E4M3, 131},
                          {Format::A4, 0}};
  const Cancel cancel;
  for (const FormatInfo& format : kFormats) {
    EXPECT_TRUE(std::any_of(std::begin(places), std::end(places), [&](const Place& p) { return p.format == format.format; }))
        << format.name;
  }
  for (const Place& place : places) {
    const std::int64_t rows = 40, cols = 512, stride = row_bytes(place.format, cols);
    auto bytes = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(rows * stride), std::uint8_t{0x11});
    Builder b(41);
    b.add("blk.3.weight", place.format, rows, cols, bytes);
    EXPECT_NO_THROW(make_backend(1)->pack(b.weights, {}, {}, cancel)) << name(place.format);
    const std::int64_t block = place.format == Format::MXFP4 ? 5 : 1;
    std::uint8_t* at = bytes->data() + 33 * stride + block * info(place.format).block_bytes * (info(place.format).block > 1) + place.offset;
    const std::uint32_t f32 = 0x7F800000u;
    const std::uint16_t f16 = 0xFC00u, bf16 = 0x7FC0u;
    if (place.format == Format::F32 || place.format == Format::NVFP4_E || (place.format == Format::F8_E4M3 && place.offset == 0))
      std::memcpy(at, &f32, 4);
    else if (place.format == Format::BF16)
      std::memcpy(at, &bf16, 2);
    else if (place.format == Format::MXFP4 || place.format == Format::F8_E4M3)
      *at = 255;
    else
      std::memcpy(at, &f16, 2);
    try {
      make_backend(2)->pack(b.weights, {}, {}, cancel);
      ADD_FAILURE() << name(place.format) << " at " << place.offset << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::numeric);
      EXPECT_NE(std::string(error.what()).find("blk.3.weight"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("row 33"), std::string::npos) << error.what();
    }
  }
  Builder b(42);
  b.vector("norm", 8, 1);
  b.weights.vectors[0].values[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(make_backend(1)->pack(b.weights, {}, {}, cancel), Error);
}

TEST(Weights, ErrorsOfReadersAndCancelReachTheCaller) {
  Builder b(43);
  b.matrix("a", Format::F32, 5000, 64);
  b.weights.matrices[0].read = [](std::int64_t first, std::int64_t count, std::uint8_t* out) {
    if (first > 2000) fail(ErrorKind::io, "the file ends");
    std::memset(out, 0, static_cast<std::size_t>(count * 256));
  };
  const Cancel never;
  try {
    make_backend(2)->pack(b.weights, {}, {}, never);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
  }
  b.weights.matrices[0].read = [](std::int64_t, std::int64_t count, std::uint8_t* out) {
    std::memset(out, 0, static_cast<std::size_t>(count * 256));
  };
  Cancel cancel;
  try {
    make_backend(2)->pack(b.weights, {}, [&](std::uint64_t) { cancel.request(); }, cancel);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
  }
  b.weights.matrices[0].rows = INT64_MAX / 2;
  EXPECT_THROW(make_backend(2)->pack(b.weights, {}, {}, never), Error);
  b.weights.matrices[0].rows = INT32_MAX;
  b.weights.matrices[0].cols = INT32_MAX;
  try {
    make_backend(2)->pack(b.weights, {}, {}, never);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
  }
}

// ---------------------------------------------------------------- what does not fit is refused
TEST(Backend, ProgramsThatDoNotFitAreRefusedWithNames) {
  const Decoder model = decoder({});
  const auto backend = make_backend(1);
  const Cancel cancel;
  const auto weights = backend->pack(model.weights, {}, {}, cancel);
  const auto refused = [&](const char* why, const std::function<void(Program&)>& change, const char* said) {
    Program p = model.body;
    change(p);
    try {
      backend->prepare(p, weights, Compute::automatic);
      ADD_FAILURE() << why << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported_model) << why;
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << why << ": " << error.what();
    }
  };
  const auto op = [](Program& p, auto tag) -> decltype(tag)& {
    for (Op& o : p.ops)
      if (auto* found = std::get_if<decltype(tag)>(&o)) return *found;
    throw std::logic_error("no such operation");
  };
  refused("an unknown matrix", [&](Program& p) { op(p, Linear{}).parts[0].weight = static_cast<MatrixId>(9999); }, "9999");
  refused("no matrix", [&](Program& p) { op(p, GatedLinear{}).up = MatrixId::none; }, "GatedLinear");
  refused(
      "a matrix of other columns",
      [&](Program& p) {
        std::swap(op(p, Linear{}).in.width, op(p, Norm{}).out.width);
        op(p, Linear{}).in.width = 32;
      },
      "'q'");
  refused("an unknown vector", [&](Program& p) { op(p, Norm{}).weight = static_cast<VectorId>(-7); }, "vector -7");
  refused("a vector of another size", [&](Program& p) { op(p, Norm{}).group = 32; }, "norm1");
  refused("a slot that is not there", [&](Program& p) { op(p, Linear{}).out.slot = 77; }, "slot 77");
  refused("columns outside", [&](Program& p) { op(p, Linear{}).out.col = INT32_MAX; }, "columns");
  refused("no width", [&](Program& p) { p.slots[2].width = 0; }, "wide");
  refused("a huge width", [&](Program& p) { p.slots[2].width = INT32_MAX; }, "wide");
  refused("rows of another kind", [&](Program& p) { p.slots[5].rows = Rows::tokens; }, "another kind");
  refused(
      "a slot read before it is written",
      [&](Program& p) {
        op(p, Norm{}).in.slot = 4;
        op(p, Norm{}).in.width = 64;
      },
      "before anything wrote it");
  refused("an unknown cache", [&](Program& p) { op(p, Store{}).cache = static_cast<CacheId>(5); }, "cache 5");
  refused("no heads", [&](Program& p) { op(p, Attend{}).kv_heads = 0; }, "kv heads");
  refused("heads that do not divide", [&](Program& p) { op(p, Attend{}).kv_heads = 3; }, "kv heads");
  refused("head_dim 0", [&](Program& p) { op(p, Rope{}).head_dim = 0; }, "heads of 0");
  refused("too many rope pairs", [&](Program& p) { op(p, Rope{}).table.inv_freq.resize(9, 1.0f); }, "pairs");
  refused("a rope of NaN", [&](Program& p) { op(p, Rope{}).table.inv_freq[0] = NAN; }, "rope");
  refused(
      "fewer frequencies of long texts", [&](Program& p) { op(p, Rope{}).table.original = 9, op(p, Rope{}).table.long_inv_freq = {1}; },
      "of long texts");
  refused("a base of 0 that grows", [&](Program& p) { op(p, Rope{}).table.original = 9, op(p, Rope{}).table.growth = 2; }, "base 0");
  refused("an original length below 0", [&](Program& p) { op(p, Rope{}).table.original = -1; }, "original length");
  refused("a temperature of NaN", [&](Program& p) { op(p, Rope{}).temperature = NAN; }, "temperature");
  refused("a temperature by less than no positions", [&](Program& p) { op(p, Rope{}).temperature_length = -1; }, "positions");
  refused("a temperature that counts from a position below 0", [&](Program& p) { op(p, Rope{}).temperature_offset = -1; }, "from -1");
  refused("chunks of less than no positions", [&](Program& p) { op(p, Attend{}).chunk = -1; }, "chunks of -1");
  refused("chunks beside a window", [&](Program& p) { op(p, Attend{}).chunk = 4, op(p, Attend{}).window = 3; }, "window 3");
  refused("a cache of other heads", [&](Program& p) { op(p, Store{}).k.width = 16; }, "the cache keeps");
  refused("a cache that is read both ways", [&](Program& p) { op(p, Attend{}).causal = false; }, "causal");
  refused("a bias of another size", [&](Program& p) { op(p, Attend{}).bias = VectorId{0}; }, "needed are 4");
  refused("a reach beyond what a table can hold", [&](Program& p) { op(p, Attend{}).reach = INT32_MAX; }, "reach");
  refused("slopes of another size", [&](Program& p) { op(p, Attend{}).slopes = VectorId{0}; }, "needed are 4");
  refused("sinks of another size", [&](Program& p) { op(p, Attend{}).sinks = VectorId{0}; }, "needed are 4");
  refused("values of another width", [&](Program& p) { op(p, Attend{}).value_dim = 8; }, "of each");
  refused("views of places without places", [&](Program& p) { op(p, Attend{}).by_query = op(p, Attend{}).q; }, "belong together");
  refused(
      "places beside a cache", [&](Program& p) { op(p, Attend{}).by_query = op(p, Attend{}).q, op(p, Attend{}).places = VectorId{0}; },
      "stand beside a cache");
  refused("a gate's bias of another size", [&](Program& p) { op(p, GatedLinear{}).gate_bias = VectorId{0}; }, "needed are 96");
  refused("a soft cap below 0", [&](Program& p) { op(p, Linear{}).softcap = -1; }, "softcap -1");
  refused("a scale of NaN", [&](Program& p) { op(p, Linear{}).scale = NAN; }, "scale nan");
  refused("xielu where it has no numbers", [&](Program& p) { op(p, GatedLinear{}).activation = Activation::xielu; }, "xielu");
  refused(
      "a gate that does not divide",
      [](Program& p) { p.ops.insert(p.ops.end() - 1, Multiply{.a = {0, 0, 64}, .b = {1, 0, 48}, .out = {0, 0, 64}}); }, "does not divide");
  refused(
      "a gate onto itself",
      [](Program& p) { p.ops.insert(p.ops.end() - 1, Multiply{.a = {0, 0, 64}, .b = {1, 0, 64}, .out = {1, 0, 64}}); }, "overlap");
  refused(
      "an activation of nothing",
      [](Program& p) {
        p.ops.insert(p.ops.end() - 1, Multiply{.a = {0, 0, 64}, .b = {}, .out = {0, 0, 64}, .activation = Activation::silu});
      },
      "without a `b`");
  refused(
      "a number that is none",
      [](Program& p) { p.ops.insert(p.ops.end() - 1, Multiply{.a = {0, 0, 64}, .b = {}, .out = {0, 0, 64}, .scale = NAN}); }, "scale nan");
  refused("a product onto its own input", [&](Program& p) { op(p, Linear{}).out = {1, 0, 64}; }, "overlap");
  refused(
      "a cache that nothing fills", [&](Program& p) { std::erase_if(p.ops, [](const Op& o) { return std::holds_alternative<Store>(o); }); },
      "stored");
  refused("an output that is not written", [&](Program& p) { p.ops.pop_back(); }, "output slot");
  refused("an output that is not there", [&](Program& p) { p.output = 6; }, "output slot");
  refused("an input that is not there", [&](Program& p) { p.input = -2; }, "input slot");
}

TEST(Backend, BatchesThatDoNotFitAreRefused) {
  DecoderShape shape;
  const Decoder model = decoder(shape);
  Session s(make_backend(2), model.weights, model.body);
  const auto ids = ids_of(60, 40, shape.vocab);
  const auto pages = pages_from(0, 64);
  const std::int32_t last = 39;
  const Segment good{0, 40, 0, pages};
  std::vector<float> out(static_cast<std::size_t>(shape.hidden));
  const auto run = [&](const std::function<void(Batch&, Io&, Segment&, std::vector<std::int32_t>&, std::vector<std::int32_t>&)>& change) {
    Segment segment = good;
    std::vector<std::int32_t> own_ids = ids, own_pages = pages;
    segment.pages = own_pages;
    Batch batch;
    batch.rows = 40;
    batch.segments = {&segment, 1};
    batch.selected = {&last, 1};
    batch.ids = own_ids;
    Io io{{}, out};
    change(batch, io, segment, own_ids, own_pages);
    s.executable->run(*s.workspace, s.caches.get(), batch, io, s.cancel);
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_NO_THROW(run([](Batch&, Io&, Segment&, Ids&, Ids&) {}));
  EXPECT_THROW(run([](Batch&, Io&, Segment&, Ids& i, Ids&) { i[3] = -1; }), Error);
  EXPECT_THROW(run([&](Batch&, Io&, Segment&, Ids& i, Ids&) { i[39] = shape.vocab; }), Error);
  EXPECT_THROW(run([](Batch& b, Io&, Segment&, Ids&, Ids&) { b.ids = b.ids.first(39); }), Error);
  EXPECT_THROW(run([](Batch& b, Io&, Segment&, Ids&, Ids&) { b.rows = 41; }), Error);
  EXPECT_THROW(run([](Batch& b, Io&, Segment&, Ids&, Ids&) { b.rows = -1; }), Error);
  EXPECT_THROW(run([](Batch&, Io&, Segment& g, Ids&, Ids&) { g.rows = 39; }), Error);
  EXPECT_THROW(run([](Batch&, Io&, Segment& g, Ids&, Ids&) { g.first = 1; }), Error);
  EXPECT_THROW(run([](Batch&, Io&, Segment& g, Ids&, Ids&) { g.past = 30; }), Error) << "too few pages";
  EXPECT_THROW(run([](Batch&, Io&, Segment& g, Ids&, Ids&) { g.past = -1; }), Error);
  EXPECT_THROW(run([](Batch&, Io&, Segment& g, Ids&, Ids&) { g.length = -1; }), Error);
  EXPECT_THROW(run([](Batch&, Io&, Segment& g, Ids&, Ids&) { g.past = INT32_MAX; }), Error);
  EXPECT_THROW(run([](Batch&, Io&, Segment&, Ids&, Ids& p) { p[1] = -3; }), Error);
  EXPECT_THROW(run([](Batch&, Io&, Segment&, Ids&, Ids& p) { p[0] = 1 << 30; }), Error);
  EXPECT_THROW(run([](Batch&, Io& io, Segment&, Ids&, Ids&) { io.out = io.out.first(3); }), Error);
  EXPECT_THROW(run([&](Batch&, Io& io, Segment&, Ids&, Ids&) { io.in = out; }), Error);
  const std::int32_t wrong[] = {39, 3};
  EXPECT_THROW(run([&](Batch& b, Io&, Segment&, Ids&, Ids&) { b.selected = wrong; }), Error);
  const std::int32_t outside = 40;
  EXPECT_THROW(run([&](Batch& b, Io&, Segment&, Ids&, Ids&) { b.selected = {&outside, 1}; }), Error);
  EXPECT_NO_THROW(run([](Batch&, Io&, Segment&, Ids&, Ids&) {})) << "and goes on";

  const Encoder e = encoder(Format::F32, PoolKind::mean);
  Session encode(make_backend(1), e.weights, e.program);
  const auto long_ids = ids_of(61, 601, e.vocab);
  const Segment text{0, 601, 0, {}};
  Batch batch;
  batch.rows = 601;
  batch.ids = long_ids;
  batch.segments = {&text, 1};
  try {
    encode.run(batch, 1);
    FAIL() << "more tokens than positions";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::context_length);
  }
  EXPECT_THROW(make_backend(-1), Error);
  EXPECT_THROW(encode.executable->run(*s.workspace, nullptr, Batch{}, Io{{}, out}, s.cancel), Error);
}

TEST(Backend, SaysWhatItIs) {
  const DeviceInfo info = make_backend(2)->info();
  EXPECT_EQ(info.id, "cpu");
  EXPECT_EQ(info.type, DeviceType::cpu);
  EXPECT_NE(info.name.find("2 threads"), std::string::npos) << info.name;
  EXPECT_GT(info.memory_free, 0u);
  EXPECT_TRUE(info.usable);
}

}  // namespace
}  // namespace pumice::cpu
