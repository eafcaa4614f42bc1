// Measures every operation on a Vulkan device by the GPU's own clock. Prints the GB/s that an operation reads and writes, its GFLOP/s, and
// the GB/s of a plain copy for comparison. The shapes are those of a 7B decoder.
// Usage: vulkan_bench [N, for the device vulkan:N in pumice.devices(); default 0] [tiny]
// `tiny` selects small shapes, to try the program itself on software Vulkan.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/checked.h"
#include "vulkan/executor.h"
#include "vulkan/variants.h"

namespace {

using namespace pumice;
using namespace pumice::vulkan;

struct Shape {
  std::int32_t hidden, inner, heads, kv_heads, head_dim, vocab, rows, past, repeats, key_heads;
  std::uint64_t copy;
};
constexpr Shape kFull{4096, 14336, 32, 8, 128, 32000, 512, 1024, 10, 16, 256u << 20};
constexpr Shape kTiny{256, 512, 4, 2, 64, 1000, 40, 64, 2, 2, 4u << 20};

// Adds a matrix of random bytes below 0x40, which are finite numbers in f16, bf16 and f32. The speed does not depend on their values.
MatrixId add(Weights& weights, Format format, std::int64_t rows, std::int64_t cols) {
  weights.matrices.push_back({"matrix", format, rows, cols, [format, cols](std::int64_t first, std::int64_t count, std::uint8_t* out) {
                                auto state = static_cast<std::uint32_t>(first + 1);
                                for (std::int64_t i = 0; i < count * row_bytes(format, cols); ++i)
                                  out[i] = (state = state * 1664525 + 1013904223) >> 26;
                              }});
  return static_cast<MatrixId>(weights.matrices.size() - 1);
}

class Bench {
 public:
  Bench(std::shared_ptr<Device> device, const Shape& shape) : device_(std::move(device)), s_(shape) {}

  void all() {
    std::printf("%-34s %6s %10s %9s %10s\n", "operation", "rows", "ms", "GB/s", "GFLOP/s");
    copy();
    for (const std::int32_t rows : {1, s_.rows}) {
      for (const FormatInfo& f : kFormats) linear(f.format, rows);
      gated(rows);
      simple("embed, Q4_K", rows, [&](Program& p, Weights& w) {
        p.slots = {{Rows::tokens, s_.hidden}};
        p.ops.push_back(Embed{{0, 0, s_.hidden}, add(w, Format::Q4_K, s_.vocab, s_.hidden)});
        p.output = 0;
      });
      simple("norm, rms", rows, [&](Program& p, Weights& w) {
        w.vectors.push_back({"norm", std::vector<float>(static_cast<std::size_t>(s_.hidden), 1.0f)});
        p.slots = {{Rows::tokens, s_.hidden}, {Rows::tokens, s_.hidden}};
        p.input = 0, p.output = 1;
        p.ops.push_back(Norm{{0, 0, s_.hidden}, {1, 0, s_.hidden}, {}, VectorId{0}, VectorId::none, NormKind::rms});
      });
      attention(rows);
      convolution(rows);
      for (const ScanRule rule : {ScanRule::ssd, ScanRule::delta}) scan(rule, rows);
      simple("log_prob", rows, [&](Program& p, Weights&) {
        p.slots = {{Rows::tokens, s_.vocab}, {Rows::tokens, 1}};
        p.input = 0, p.output = 1;
        p.ops.push_back(LogProb{{0, 0, s_.vocab}, {1, 0, 1}});
      });
      simple("top, k 64", rows, [&](Program& p, Weights&) {
        const auto columns = static_cast<std::int32_t>(top_width(64, 0));
        p.slots = {{Rows::tokens, s_.vocab}, {Rows::tokens, columns}};
        p.input = 0, p.output = 1;
        p.ops.push_back(Top{{0, 0, s_.vocab}, {1, 0, columns}, 64});
      });
    }
    simple("select, one row", s_.rows, [&](Program& p, Weights&) {
      p.slots = {{Rows::tokens, s_.hidden}, {Rows::selected, s_.hidden}};
      p.input = 0, p.output = 1;
      p.ops.push_back(Select{{0, 0, s_.hidden}, {1, 0, s_.hidden}});
    });
    simple("pool, mean", s_.rows, [&](Program& p, Weights&) {
      p.slots = {{Rows::tokens, s_.hidden}, {Rows::segments, s_.hidden}};
      p.input = 0, p.output = 1;
      p.ops.push_back(Pool{{0, 0, s_.hidden}, {1, 0, s_.hidden}, PoolKind::mean});
    });
    for (const std::string& note : device_->variant_tests().notes()) std::printf("note: %s\n", note.c_str());
  }

 private:
  void copy() {
    const std::uint64_t bytes = std::min({s_.copy, device_->limits().range, device_->limits().allocation});
    const auto from = device_->buffer(bytes, Place::device, "what is copied"), to = device_->buffer(bytes, Place::device, "its copy");
    const Command command = Copy{from.get(), to.get(), {{.size = bytes}}};
    Recording recording(*device_, {command}, true);
    std::vector<std::vector<Timing>> runs;
    for (int i = 0; i <= s_.repeats; ++i) {
      recording.run(Cancel{});
      runs.push_back(recording.timings());
    }
    report(str("copy of ", bytes >> 20, " MiB (read and written)"), 0, runs);
  }

  void linear(Format format, std::int32_t rows) {
    const auto program = [&](Program& p, Weights& w) {
      p.slots = {{Rows::tokens, s_.hidden}, {Rows::tokens, s_.inner}};
      p.input = 0, p.output = 1;
      p.ops.push_back(Linear{{0, 0, s_.hidden}, {1, 0, s_.inner}, {{add(w, format, s_.inner, s_.hidden)}}});
    };
    simple(str("linear, ", info(format).name), rows, program);
    const Variants offers = offered(device_->physical(), Compute::automatic);
    if (offers.integer_dot && info(format).quantized)
      simple(str("linear, ", info(format).name, ", integer dot"), rows, program, {.integer_dot = true});
    if (offers.cooperative_matrix && rows > 8)
      simple(str("linear, ", info(format).name, ", cooperative"), rows, program, {.cooperative_matrix = true});
  }

  void gated(std::int32_t rows) {
    simple("gated linear, Q4_K", rows, [&](Program& p, Weights& w) {
      p.slots = {{Rows::tokens, s_.hidden}, {Rows::tokens, s_.inner}};
      p.input = 0, p.output = 1;
      p.ops.push_back(GatedLinear{
          {0, 0, s_.hidden}, {1, 0, s_.inner}, add(w, Format::Q4_K, s_.inner, s_.hidden), add(w, Format::Q4_K, s_.inner, s_.hidden)});
    });
  }

  // Measures rope, store and attend for a batch of one text, which has `rows` new tokens after `past` cached tokens.
  void attention(std::int32_t rows) {
    const std::int32_t q = s_.heads * s_.head_dim, kv = s_.kv_heads * s_.head_dim;
    simple(str("after ", s_.past, " tokens"), rows, [&](Program& p, Weights&) {
      p.slots = {{Rows::tokens, q + 2 * kv}, {Rows::tokens, q}};
      p.caches = {{s_.kv_heads, s_.head_dim, s_.head_dim}};
      p.input = 0, p.output = 1;
      RopeTable rope;
      rope.inv_freq.assign(static_cast<std::size_t>(s_.head_dim) / 2, 0.1f);
      p.ops = {Rope{{0, 0, q}, s_.head_dim, rope}, Rope{{0, q, kv}, s_.head_dim, rope}, Store{{0, q, kv}, {0, q + kv, kv}, CacheId{0}}};
      Attend attend;
      attend.q = {0, 0, q};
      attend.out = {1, 0, q};
      attend.cache = CacheId{0};
      attend.key_dim = attend.value_dim = s_.head_dim;
      attend.kv_heads = s_.kv_heads;
      attend.causal = true;
      attend.scale = 0.1f;
      p.ops.push_back(attend);
    });
  }

  // Measures a convolution for a batch of one text. It starts from a saved state and saves another one, as in the layers of a hybrid
  // decoder.
  void convolution(std::int32_t rows) {
    const std::int32_t width = (s_.heads + 2 * s_.key_heads) * s_.head_dim;
    simple(str("conv, 4 taps, ", width, " columns"), rows, [&](Program& p, Weights& w) {
      w.vectors.push_back({"taps", std::vector<float>(static_cast<std::size_t>(4 * width), 0.3f)});
      p.slots = {{Rows::tokens, width}, {Rows::tokens, width}};
      p.states = {{1, 3, width}};
      p.input = 0, p.output = 1;
      p.ops.push_back(Conv{
          .in = {0, 0, width}, .out = {1, 0, width}, .taps = VectorId{0}, .width = 4, .activation = Activation::silu, .state = StateId{0}});
    });
  }

  void scan(ScanRule rule, std::int32_t rows) {
    const std::int32_t keys = s_.key_heads * s_.head_dim, values = s_.heads * s_.head_dim;
    simple(str(kScanRules[static_cast<std::size_t>(rule)], ", ", s_.heads, " heads of ", s_.head_dim), rows, [&](Program& p, Weights& w) {
      w.vectors.push_back({"rate", std::vector<float>(static_cast<std::size_t>(s_.heads), -1.0f)});
      p.slots = {{Rows::tokens, 2 * keys + values + 2 * s_.heads}, {Rows::tokens, values}};
      p.states = {{s_.heads, s_.head_dim, s_.head_dim}};
      p.input = 0, p.output = 1;
      Scan op{.q = {0, 0, keys}, .k = {0, keys, keys}, .v = {0, 2 * keys, values}, .step = {0, 2 * keys + values, s_.heads}};
      if (rule == ScanRule::delta) op.beta = {0, 2 * keys + values + s_.heads, s_.heads};
      op.out = {1, 0, values};
      op.rate = VectorId{0};
      op.key_heads = s_.key_heads, op.key_dim = op.value_dim = s_.head_dim;
      op.rule = rule;
      op.strength = 0.02f;  // less than 1, because the keys have a length of more than 1
      op.state = StateId{0};
      p.ops.push_back(op);
    });
  }

  // Runs a program of few operations and prints a line for each kind of dispatch in it.
  template <class Build>
  void simple(const std::string& name, std::int32_t rows, Build build, const Variants& variants = {}) {
    Program p{.name = name};
    Weights host;
    build(p, host);
    const auto weights = std::make_shared<const GpuWeights>(device_, host, std::vector<bool>{}, Progress(), Cancel{});
    const bool cached = !p.caches.empty(), stateful = !p.states.empty();
    const std::int32_t past = cached || stateful ? s_.past : 0, width = p.slots[static_cast<std::size_t>(p.output)].width;
    const Rows out_rows = p.slots[static_cast<std::size_t>(p.output)].rows;
    GpuCaches caches(device_, p, KvFormat::f16);
    std::vector<std::int32_t> pages(static_cast<std::size_t>(ceil_div(past + rows, kPageTokens)));
    std::iota(pages.begin(), pages.end(), 0);
    if (cached) caches.reserve(static_cast<std::int32_t>(pages.size()));
    if (stateful) {
      caches.reserve_states(2);
      caches.write_state(0, std::vector<std::uint8_t>(caches.state_bytes()).data());
    }
    const SavedState saved{rows, 1};
    const std::vector<float> in(p.input < 0 ? 0 : static_cast<std::size_t>(rows) * static_cast<std::size_t>(p.slots[0].width), 0.5f);
    std::vector<float> out(static_cast<std::size_t>(out_rows == Rows::tokens ? rows : 1) * static_cast<std::size_t>(width));
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(rows), 1);
    const std::int32_t selected = rows - 1;
    Segment segment{.rows = rows, .past = past};
    if (cached) segment.pages = pages;
    if (stateful) segment.state = 0, segment.saves = {&saved, 1};
    const Op& op = p.ops[0];
    const bool takes_ids = std::holds_alternative<Embed>(op) || std::holds_alternative<LogProb>(op);
    const bool takes_segments = cached || stateful || std::holds_alternative<Pool>(op);
    Batch batch{.rows = rows};
    if (takes_ids) batch.ids = ids;
    if (takes_segments) batch.segments = {&segment, 1};
    if (std::holds_alternative<Select>(op)) batch.selected = {&selected, 1};
    const GpuExecutable executable(device_, std::move(p), weights, variants, Cancel{});
    GpuWorkspace workspace(device_);
    const Io io{in, out};
    std::vector<std::vector<Timing>> runs;
    for (int i = 0; i <= s_.repeats; ++i) {
      runs.push_back(executable.measure(workspace, cached || stateful ? &caches : nullptr, batch, io));
      std::erase_if(runs.back(), [](const Timing& t) { return std::strcmp(t.what, "copy") == 0; });  // without copies from and to the host
    }
    report(name, rows, runs);
  }

  // Prints the fastest run of each kind of dispatch, because other work on the device can only make a run slower.
  void report(const std::string& name, std::int32_t rows, const std::vector<std::vector<Timing>>& runs) {
    std::map<std::string, Timing> fastest;
    for (const std::vector<Timing>& run : runs) {
      std::map<std::string, Timing> sums;
      for (const Timing& t : run) {
        Timing& sum = sums.try_emplace(t.what, Timing{t.what, 0, 0, 0}).first->second;
        sum.flops += t.flops, sum.bytes += t.bytes, sum.seconds += t.seconds;
      }
      for (const auto& [what, sum] : sums) {
        Timing& best = fastest.try_emplace(what, sum).first->second;
        if (sum.seconds < best.seconds) best = sum;
      }
    }
    for (const auto& [what, t] : fastest) {
      const std::string label = fastest.size() == 1 ? name : str(what, ", ", name);
      std::printf("%-34s %6d %10.4f %9.2f %10.1f\n", label.c_str(), rows, t.seconds * 1e3, t.bytes / t.seconds * 1e-9,
                  t.flops / t.seconds * 1e-9);
    }
    std::fflush(stdout);
  }

  const std::shared_ptr<Device> device_;
  const Shape s_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    bool tiny = false;
    std::size_t index = 0;
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "tiny") == 0)
        tiny = true;
      else
        index = std::strtoul(argv[i], nullptr, 10);
    }
    const auto& all = Instance::get().devices();
    require(index < all.size() && all[index].usable, "vulkan:", index, " is not there, or cannot be used; pumice devices lists them");
    const PhysicalDevice& physical = all[index];
    require(physical.timestamp_ns > 0, physical.name, " has no timestamps");
    std::printf("%s; %s, Vulkan %u.%u.%u;", physical.name.c_str(), physical.driver.c_str(), VK_API_VERSION_MAJOR(physical.api_version),
                VK_API_VERSION_MINOR(physical.api_version), VK_API_VERSION_PATCH(physical.api_version));
    for (const std::string& feature : physical.features) std::printf(" %s;", feature.c_str());
    std::printf("\n");
    const auto device = Device::open(physical);
    const Variants works = device->variant_tests().passed(offered(physical, Compute::automatic), Cancel{});
    std::printf("self-tests: integer dot %s, cooperative matrix %s\n", works.integer_dot ? "passed" : "not used",
                works.cooperative_matrix ? "passed" : "not used");
    Bench(device, tiny ? kTiny : kFull).all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
