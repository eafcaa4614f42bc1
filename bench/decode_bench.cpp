// Measures decode and prefill of a synthetic model with the shape of SmolLM2-135M: 30 layers, hidden size 576, 9 heads, 3 kv heads of 64
// columns, a feed-forward width of 1536, 49,152 tokens, weights in Q4_1 and the tied head in Q8_0. Prints tokens per second, and the
// fraction of the time that is spent on work other than matrix products.
// Usage: decode_bench [number of threads; 0 means automatic] [number of tokens already in the cache]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <vector>

#include "core/checked.h"
#include "cpu/cpu_backend.h"

namespace {

using namespace pumice;
using Clock = std::chrono::steady_clock;

constexpr int kLayers = 30, kHidden = 576, kHeads = 9, kKvHeads = 3, kHeadDim = 64, kInner = 1536, kVocab = 49152;

// Adds a matrix of random codes with small scales. Random codes are good enough, because the speed does not depend on the values.
MatrixId matrix(Weights& weights, Format format, std::int64_t rows, std::int64_t cols) {
  const std::int64_t stride = row_bytes(format, cols);
  auto bytes = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(rows * stride));
  std::uint32_t state = 12345;
  for (auto& byte : *bytes) byte = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  const std::int64_t block = info(format).block_bytes;
  const std::uint16_t scale = f32_to_f16(format == Format::Q8_0 ? 5e-4f : 8e-3f), low = f32_to_f16(-6e-2f);
  for (std::int64_t b = 0; b < rows * stride; b += block) {
    std::memcpy(bytes->data() + b, &scale, 2);
    if (format == Format::Q4_1) std::memcpy(bytes->data() + b + 2, &low, 2);
  }
  weights.matrices.push_back({"matrix", format, rows, cols, [bytes, stride](std::int64_t first, std::int64_t count, std::uint8_t* out) {
                                std::memcpy(out, bytes->data() + first * stride, static_cast<std::size_t>(count * stride));
                              }});
  return static_cast<MatrixId>(weights.matrices.size() - 1);
}

struct Model {
  Weights weights;
  Program whole, products;  // `products` is `whole` without rope, attention, and the norms in the layers
};

Model model() {
  Model m;
  Weights& w = m.weights;
  w.vectors.push_back({"ones", std::vector<float>(kHidden, 1.0f)});
  const VectorId ones{0};
  const int q = kHeads * kHeadDim, kv = kKvHeads * kHeadDim;
  Program& p = m.whole;
  p.name = "whole";
  p.slots = {{Rows::tokens, kHidden}, {Rows::tokens, kHidden},   {Rows::tokens, q + 2 * kv}, {Rows::tokens, q},
             {Rows::tokens, kInner},  {Rows::selected, kHidden}, {Rows::selected, kHidden},  {Rows::selected, kVocab}};
  p.output = 7;
  m.products = p;
  Program& f = m.products;
  const View x{0, 0, kHidden}, h{1, 0, kHidden}, qkv{2, 0, q + 2 * kv}, a{3, 0, q}, inner{4, 0, kInner};
  const MatrixId embedding = matrix(w, Format::Q8_0, kVocab, kHidden);
  RopeTable rope;
  for (int j = 0; j < kHeadDim / 2; ++j) rope.inv_freq.push_back(std::pow(100000.0f, -2.0f * j / kHeadDim));
  p.ops.push_back(Embed{x, embedding});
  f.ops = {Embed{x, embedding}, Norm{x, h, {}, ones, VectorId::none, NormKind::rms},
           Norm{x, View{3, 0, q}, {}, ones, VectorId::none, NormKind::rms}};
  for (int l = 0; l < kLayers; ++l) {
    p.caches.push_back({kKvHeads, kHeadDim, kHeadDim});
    const Linear in{
        h, qkv, {{matrix(w, Format::Q4_1, q, kHidden)}, {matrix(w, Format::Q4_1, kv, kHidden)}, {matrix(w, Format::Q4_1, kv, kHidden)}}};
    const Linear out{a, x, {{matrix(w, Format::Q4_1, kHidden, q)}}, Activation::none, x};
    const GatedLinear gated{h, inner, matrix(w, Format::Q4_1, kInner, kHidden), matrix(w, Format::Q4_1, kInner, kHidden)};
    const Linear down{inner, x, {{matrix(w, Format::Q4_1, kHidden, kInner)}}, Activation::none, x};
    Attend attend;
    attend.q = {2, 0, q};
    attend.out = a;
    attend.cache = static_cast<CacheId>(l);
    attend.key_dim = attend.value_dim = kHeadDim;
    attend.kv_heads = kKvHeads;
    attend.causal = true;
    attend.scale = 0.125f;
    p.ops.insert(p.ops.end(), {Norm{x, h, {}, ones, VectorId::none, NormKind::rms}, in, Rope{{2, 0, q}, kHeadDim, rope},
                               Rope{{2, q, kv}, kHeadDim, rope}, Store{{2, q, kv}, {2, q + kv, kv}, attend.cache}, attend, out,
                               Norm{x, h, {}, ones, VectorId::none, NormKind::rms}, gated, down});
    f.ops.insert(f.ops.end(), {in, out, gated, down});
  }
  for (Program* program : {&p, &f}) {
    program->ops.push_back(Select{x, {5, 0, kHidden}});
    program->ops.push_back(Norm{{5, 0, kHidden}, {6, 0, kHidden}, {}, ones, VectorId::none, NormKind::rms});
    program->ops.push_back(Linear{{6, 0, kHidden}, {7, 0, kVocab}, {{embedding}}});
  }
  return m;
}

// Seconds per run, over many runs. `best` and `median` are wall-clock times. `cpu` is the least processor time of the calling thread. On a
// busy machine only `cpu` is useful.
struct Times {
  double best, median, cpu;
};
Times time_runs(const Executable& executable, Workspace& workspace, CacheStore& caches, int rows, int past, int runs) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows), 7);
  std::vector<std::int32_t> pages(static_cast<std::size_t>(ceil_div(past + rows, kPageTokens)));
  std::iota(pages.begin(), pages.end(), 0);
  const Segment segment{0, rows, past, pages};
  const std::int32_t last = rows - 1;
  Batch batch;
  batch.rows = rows;
  batch.ids = ids;
  batch.segments = {&segment, 1};
  batch.selected = {&last, 1};
  std::vector<float> out(kVocab);
  const Cancel cancel;
  std::vector<double> seconds, cpu;
  const auto thread_cpu = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  for (int i = 0; i < runs; ++i) {
    const auto begin = Clock::now();
    const double cpu_begin = thread_cpu();
    executable.run(workspace, &caches, batch, {{}, out}, cancel);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    cpu.push_back(thread_cpu() - cpu_begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2], *std::min_element(cpu.begin(), cpu.end())};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto backend = cpu::make_backend(argc > 1 ? std::atoi(argv[1]) : 0);
    const int past = argc > 2 ? std::atoi(argv[2]) : 64;
    const Model m = model();
    const Cancel cancel;
    const auto begin = Clock::now();
    const auto weights = backend->pack(m.weights, {}, {}, cancel);
    const double packing = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto whole = backend->prepare(m.whole, weights, Compute::automatic),
               products = backend->prepare(m.products, weights, Compute::automatic);
    const auto workspace = backend->make_workspace(Crew::team);
    const auto caches = backend->make_caches(m.whole, KvFormat::f16);
    caches->reserve(static_cast<std::int32_t>(ceil_div(past + 513, kPageTokens)));
    std::printf("%s\n", backend->info().name.c_str());
    std::printf("packing: %.1f MB in %.0f ms\n", static_cast<double>(weights->bytes()) / 1e6, 1e3 * packing);
    for (int done = 0; done < past; done += 512) time_runs(*whole, *workspace, *caches, std::min(512, past - done), done, 1);
    const Times decode = time_runs(*whole, *workspace, *caches, 1, past, 200),
                only = time_runs(*products, *workspace, *caches, 1, past, 200);
    std::printf(
        "decode after %d: %.0f tokens/s (median %.0f); products alone %.0f (median %.0f): %.0f %% is not products (median %.0f %%)\n", past,
        1 / decode.best, 1 / decode.median, 1 / only.best, 1 / only.median, 100 * (1 - only.best / decode.best),
        100 * (1 - only.median / decode.median));
    std::printf("caller's CPU time of a token: %.3f ms, of its products: %.3f ms\n", 1e3 * decode.cpu, 1e3 * only.cpu);
    const Times prefill = time_runs(*whole, *workspace, *caches, 512, 0, 5);
    std::printf("prefill of 512: %.0f tokens/s (median %.0f)\n", 512 / prefill.best, 512 / prefill.median);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
