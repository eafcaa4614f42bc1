// Measures the CPU's kernels on one core, for the instruction set in use (PUMICE_ISA): the products of every format, compared with OpenBLAS
// and with the limits of the machine; float32 products of several shapes; and row kernels. Prints the best and the median thread CPU time
// of many trials.
//   ops_bench [--quick] [--short] [format ...]
//   format: measures only the products of these formats
//   --short: measures products of one shape by many numbers of tokens, without comparing them with OpenBLAS
#include <dlfcn.h>

#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checked.h"
#include "core/ops.h"
#include "cpu/blas.h"
#include "cpu/cache_store.h"
#include "cpu/kernels.h"
#include "cpu/lowering.h"
#include "cpu/packed_weights.h"
#include "cpu/steps/cut.h"
#include "machine.h"
#include "os/limits.h"

namespace {

using namespace pumice;
using namespace pumice::cpu;
using namespace pumice::bench;

const std::int64_t kFromMemory = from_memory();
constexpr std::int64_t kMostTokens = 512;

struct Shape {
  std::int64_t rows, cols;
  auto operator<=>(const Shape&) const = default;
  double macs(std::int64_t tokens) const { return static_cast<double>(rows * cols * tokens); }
};

struct Settings {
  bool quick = false, only_short = false;
  std::vector<Format> formats;  // formats to measure; if empty, all formats and all other kernels are measured
  double hz = 1;
  double budget() const { return quick ? 0.01 : 0.05; }
};

template <class Value>
std::vector<Value> random_values(std::int64_t count, Value (*make)(std::uint32_t)) {
  std::mt19937 source(1);
  std::vector<Value> values(static_cast<std::size_t>(count));
  for (Value& value : values) value = make(static_cast<std::uint32_t>(source()));
  return values;
}

// The activations of up to kMostTokens tokens, in every form that a kernel accepts. The speed does not depend on their values.
struct Activations {
  explicit Activations(std::int64_t most_cols)
      : floats(random_values<float>(kMostTokens * activation_stride(most_cols),
                                    [](std::uint32_t r) { return static_cast<float>(r % 1000) * 1e-3f - 0.5f; })),
        int8(random_values<std::int8_t>(kMostTokens * most_cols,
                                        [](std::uint32_t r) { return static_cast<std::int8_t>(static_cast<int>(r % 255) - 127); })),
        int16(random_values<std::int16_t>(
            kMostTokens * round_up(most_cols, kFixedBlock),
            [](std::uint32_t r) { return static_cast<std::int16_t>(static_cast<std::int64_t>(r % 16383) - kFixedActivation); })),
        scales(floats.size() / kQuantBlock, 0.01f),
        sums(floats.size() / 16, 7),
        scaled_sums(scales.size(), 0.14f) {}

  const float* row(std::int64_t token, std::int64_t cols) const { return floats.data() + token * activation_stride(cols); }
  QuantRows quant(std::int64_t tokens, std::int64_t cols) {
    return {int8.data(), scales.data(), sums.data(), scaled_sums.data(), tokens, cols};
  }
  FixedRows fixed(std::int64_t tokens, std::int64_t cols) { return {int16.data(), scales.data(), sums.data(), tokens, cols}; }

  std::vector<float> floats;
  std::vector<std::int8_t> int8;
  std::vector<std::int16_t> int16;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  std::vector<float> scaled_sums;
};

// Divides a product into tiles as the executor does, and calls tile(first output, number of outputs, first token, number of tokens) for
// each.
template <class Tile>
void in_tiles(std::int64_t rows, std::int64_t tokens, Tile tile) {
  if (tokens <= kNarrowRows) return tile(0, rows, 0, tokens);
  const std::int64_t height = block_rows(tokens), width = kBlockGroups * kGroupRows;
  for (std::int64_t t = 0; t < tokens; t += height) {
    for (std::int64_t r = 0; r < rows; r += width) tile(r, std::min(width, rows - r), t, std::min(height, tokens - t));
  }
}

// ---------------------------------------------------------------- what the machine allows
void print_reads(const Settings& settings) {
  const HugeBuffer memory(std::max<std::int64_t>(256 << 20, kFromMemory));
  const auto bytes = static_cast<double>(memory.bytes());
  std::vector<int> counts = {1};
  if (os::allowed_cpus() > 1) counts.push_back(os::allowed_cpus());
  for (const int threads : counts) {
    const Times t = read_by(memory, threads, settings.quick ? 10 : 50);
    std::printf("plain read of %.0f MB, %d thread%s: %.1f GB/s (median %.1f)\n", bytes * 1e-6, threads, threads == 1 ? "" : "s",
                bytes / t.best * 1e-9, bytes / t.median * 1e-9);
  }
}

void print_limits(const Settings& settings) {
  std::printf("%s, kernels %s, %.2f GHz\n", os::cpu_model().c_str(), kernels().isa, settings.hz * 1e-9);
  print_reads(settings);
  for (const Peak& peak : kPeaks) {
    if (kernels_for(peak.isa) == nullptr) {
      std::printf("peak %s: not run, this machine has no %s\n", peak.name, peak.isa);
      continue;
    }
    // measured again: if the clock rate has risen since the last measurement, the result would exceed the peak
    const double hz = clock_hz();
    const Times t = measure(peak.run, 0.2);
    const auto macs = static_cast<double>(peak.macs * kPeakSums);
    std::printf("peak %s: %.1f MAC/cycle (median %.1f), %.0f GFLOP/s\n", peak.name, macs / t.best / hz, macs / t.median / hz,
                2e-9 * macs / t.best);
  }
  if (blas() == nullptr) {
    std::printf("OpenBLAS: none, %s\n", blas_why_not().c_str());
  } else {
    std::printf("OpenBLAS: %s, panels of %lld rows\n", blas()->config().c_str(), static_cast<long long>(blas()->panel_rows()));
  }
}

// ---------------------------------------------------------------- OpenBLAS
// The function of OpenBLAS that computes a whole product in one call, and not in tiles as the executor does. This shows the speed of
// OpenBLAS without the condition that the bits of a row must not depend on the batch.
using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                       int ldb, float beta, float* c, int ldc);
Sgemm whole_sgemm() {
  if (blas() == nullptr) return nullptr;
  void* library = dlopen(blas()->path().c_str(), RTLD_NOW | RTLD_LOCAL);  // the library is already open, so dlopen() only finds it
  void* found = dlsym(library, "scipy_cblas_sgemm");
  return reinterpret_cast<Sgemm>(found != nullptr ? found : dlsym(library, "cblas_sgemm"));
}

// The times of OpenBLAS for a product: in the executor's tiles (`panels`), and in one call for the whole product (`whole`).
struct Rivals {
  Times panels, whole;
};

Rivals openblas(Shape shape, std::int64_t tokens, Activations& x, const Settings& settings) {
  static const Sgemm sgemm = whole_sgemm();
  const std::int64_t floats = shape.rows * shape.cols;
  const std::int64_t copies = tokens <= kNarrowRows ? ceil_div(kFromMemory, floats * 4) : 1;
  const HugeBuffer memory(copies * floats * 4);
  auto* const weights = reinterpret_cast<float*>(memory.get());
  for (std::int64_t i = 0; i < copies * floats; ++i) weights[i] = x.floats[static_cast<std::size_t>(i) % x.floats.size()];
  std::vector<float> out(static_cast<std::size_t>(tokens * shape.rows));
  const auto each = [&](auto product) {
    const Times t = measure(
        [&] {
          for (std::int64_t c = 0; c < copies; ++c) product(weights + c * floats);
        },
        settings.budget());
    return Times{t.best / static_cast<double>(copies), t.median / static_cast<double>(copies)};
  };
  const Times panels = each([&](const float* w) {
    in_tiles(shape.rows, tokens, [&](std::int64_t r, std::int64_t rows, std::int64_t t, std::int64_t count) {
      sgemm_nt(count, rows, shape.cols, x.row(t, shape.cols), activation_stride(shape.cols), w + r * shape.cols, shape.cols,
               out.data() + t * shape.rows + r, shape.rows);
    });
  });
  const Times whole = each([&](const float* w) {
    constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;
    const auto m = static_cast<int>(tokens), n = static_cast<int>(shape.rows), k = static_cast<int>(shape.cols);
    sgemm(kRowMajor, kNoTrans, kTrans, m, n, k, 1.0f, x.floats.data(), static_cast<int>(activation_stride(k)), w, k, 0.0f, out.data(), n);
  });
  return {panels, whole};
}

// ---------------------------------------------------------------- products
// One way to multiply with packed weights. The arguments of product() are: groups of weights, number of outputs, number of columns, number
// of all tokens, first token, number of tokens, out, stride of out.
struct Way {
  std::string name;
  std::function<void(const std::uint8_t*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t)>
      product;
};

struct Packing {
  std::string format;
  std::int64_t block;  // number of columns in a block
  std::int64_t (*group_bytes)(std::int64_t cols);
  std::function<void(Shape, std::int64_t group, std::uint8_t* out)> pack;  // packs one group of 16 rows
  std::int64_t file_row_bytes(std::int64_t cols) const { return cols / block * block_bytes; }
  std::int64_t block_bytes;
  std::vector<Way> ways;
};

std::vector<Packing> packings(Activations& x, const std::vector<std::uint8_t>& file, const std::vector<float>& floats) {
  std::vector<Packing> all;
  const auto fixed = [&x](ProductFixed product) {
    return [&x, product](const std::uint8_t* w, std::int64_t rows, std::int64_t cols, std::int64_t tokens, std::int64_t first,
                         std::int64_t count, float* out,
                         std::int64_t stride) { product(w, rows, cols, x.fixed(tokens, cols), first, count, out, stride); };
  };
  for (const FormatInfo& f : kFormats) {
    const FormatKernels& k = kernels().matrix[f.format];
    Packing p{std::string(f.name), f.block, k.group_bytes, {}, f.block_bytes, {}};
    p.pack = [&k, &file, &f](Shape shape, std::int64_t group, std::uint8_t* out) {
      const std::int64_t stride = row_bytes(f.format, shape.cols);
      if (f.quantized) return k.pack_group(file.data() + group * kGroupRows * stride, stride, kGroupRows, shape.cols, out);
      // All floats are 0.25. Random bytes would contain subnormal numbers, which take 150 cycles per multiply-add on Intel's processors.
      const bool codes = f.format == Format::F8_E4M3;  // All bytes become the code of 0.25, those of the scales too, which then are 9e-15.
      std::vector<std::uint8_t> quarters(static_cast<std::size_t>(kGroupRows * stride), codes ? 0x28 : 0);
      const std::int64_t width = f.block_bytes / f.block;
      const int top = f.format == Format::F16 ? 0x34 : 0x3e, below = f.format == Format::F16 ? 0 : 0x80;
      for (std::int64_t at = 0; !codes && at < kGroupRows * stride; at += width) {
        quarters[static_cast<std::size_t>(at + width - 1)] = static_cast<std::uint8_t>(top);
        quarters[static_cast<std::size_t>(at + width - 2)] = static_cast<std::uint8_t>(below);
      }
      k.pack_group(quarters.data(), stride, kGroupRows, shape.cols, out);
    };
    if (k.product_int8 != nullptr) {
      p.ways.push_back({"int8", [&x, &k](const std::uint8_t* w, std::int64_t rows, std::int64_t cols, std::int64_t tokens,
                                         std::int64_t first, std::int64_t count, float* out, std::int64_t stride) {
                          k.product_int8(w, rows, cols, x.quant(tokens, cols), first, count, out, stride);
                        }});
    }
    p.ways.push_back({"f32", [&x, &k](const std::uint8_t* w, std::int64_t rows, std::int64_t cols, std::int64_t, std::int64_t first,
                                      std::int64_t count, float* out, std::int64_t stride) {
                        k.product_f32(w, rows, cols, x.row(first, cols), activation_stride(cols), count, out, stride);
                      }});
    if (k.product_fixed != nullptr) p.ways.push_back({"fixed", fixed(k.product_fixed)});
    all.push_back(std::move(p));
  }
  // The kernel for float weights (of any float format) that are rounded to fixed point.
  const FixedKernels& k = kernels().matrix.fixed;
  Packing p{"rounded", 1, k.group_bytes, {}, 4, {{"fixed", fixed(k.product)}}};
  p.pack = [&k, &floats](Shape shape, std::int64_t group, std::uint8_t* out) {
    k.pack_group(floats.data() + group * kGroupRows * shape.cols, kGroupRows, shape.cols, out);
  };
  all.push_back(std::move(p));
  return all;
}

Times time_product(const Way& way, const std::uint8_t* weights, std::int64_t copies, std::int64_t copy_bytes, std::int64_t group_bytes,
                   Shape shape, std::int64_t tokens, float* out, double budget) {
  const Times t = measure(
      [&] {
        for (std::int64_t c = 0; c < copies; ++c) {
          const std::uint8_t* groups = weights + c * copy_bytes;
          in_tiles(shape.rows, tokens, [&](std::int64_t r, std::int64_t rows, std::int64_t first, std::int64_t count) {
            way.product(groups + r / kGroupRows * group_bytes, rows, shape.cols, tokens, first, count, out + first * shape.rows + r,
                        shape.rows);
          });
        }
      },
      budget);
  return {t.best / static_cast<double>(copies), t.median / static_cast<double>(copies)};
}

double gflops(double macs, double seconds) { return 2e-9 * macs / seconds; }

void products(const Settings& settings) {
  const std::vector<Shape> shapes = settings.quick || settings.only_short
                                        ? std::vector<Shape>{{2048, 2048}}
                                        : std::vector<Shape>{{1536, 384}, {576, 1536}, {640, 2048}, {2048, 2048}};
  const std::vector<std::int64_t> counts = settings.only_short ? std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 96}
                                           : settings.quick    ? std::vector<std::int64_t>{1, 16, 256}
                                                               : std::vector<std::int64_t>{1, 2, 4, 16, 64, 256};
  const std::int64_t most = 2048 * 2048;
  Activations x(2048);
  std::vector<std::uint8_t> file(static_cast<std::size_t>(most * 4));
  std::mt19937 random(1);
  for (auto& byte : file) byte = static_cast<std::uint8_t>(random() % 48);  // small bytes, so that no scale becomes infinite
  const std::vector<float> floats(static_cast<std::size_t>(most), 0.25f);
  std::vector<float> out(static_cast<std::size_t>(kMostTokens * 2048));
  std::map<std::pair<Shape, std::int64_t>, double> rival;  // GFLOP/s of OpenBLAS for the same shape and number of tokens

  std::printf(
      "\nProducts, one thread. Up to %lld tokens the weights come from memory (%lld MB of copies), beyond they may stay in the caches.\n"
      "weights x activations, GB/s: of packed weights. OpenBLAS: float32 weights of the same shape, as the engine would call it.\n",
      static_cast<long long>(kNarrowRows), static_cast<long long>(kFromMemory >> 20));
  std::printf("%-8s%-6s %5s x %-5s %6s | %8s %8s | %9s | %6s | %8s %s\n", "weights", "by", "rows", "cols", "tokens", "GFLOP/s", "median",
              "MAC/cycle", "GB/s", "OpenBLAS", "ours / its");
  for (const Packing& packing : packings(x, file, floats)) {
    // null for "rounded", which is measured if any of `settings.formats` is a float format
    const auto format = format_from_name(packing.format);
    const auto wanted = [&](Format f) { return format ? f == *format : !info(f).quantized; };
    if (!settings.formats.empty() && std::none_of(settings.formats.begin(), settings.formats.end(), wanted)) continue;
    for (Shape shape : shapes) {
      if (shape.cols % packing.block != 0) shape.cols = round_up(shape.cols, packing.block);
      const std::int64_t group_bytes = packing.group_bytes(shape.cols), groups = shape.rows / kGroupRows, bytes = groups * group_bytes;
      const std::int64_t copies = ceil_div(kFromMemory, bytes);
      const HugeBuffer memory(bytes * copies);
      const auto pack = [&](std::int64_t copy) {
        for (std::int64_t g = 0; g < groups; ++g) packing.pack(shape, g, memory.get() + copy * bytes + g * group_bytes);
      };
      pack(0);
      for (std::int64_t c = 1; c < copies; ++c) std::memcpy(memory.get() + c * bytes, memory.get(), static_cast<std::size_t>(bytes));
      for (const Way& way : packing.ways) {
        for (const std::int64_t tokens : counts) {
          const Times t = time_product(way, memory.get(), tokens <= kNarrowRows ? copies : 1, bytes, group_bytes, shape, tokens, out.data(),
                                       settings.budget());
          std::printf("%-8s%-6s %5lld x %-5lld %6lld | %8.1f %8.1f | %9.1f | %6.1f |", packing.format.c_str(), way.name.c_str(),
                      static_cast<long long>(shape.rows), static_cast<long long>(shape.cols), static_cast<long long>(tokens),
                      gflops(shape.macs(tokens), t.best), gflops(shape.macs(tokens), t.median), shape.macs(tokens) / t.best / settings.hz,
                      static_cast<double>(bytes) / t.best * 1e-9);
          if (blas() != nullptr && !settings.only_short) {
            const auto [known, missing] = rival.try_emplace({shape, tokens});
            if (missing) known->second = gflops(shape.macs(tokens), openblas(shape, tokens, x, settings).panels.best);
            std::printf(" %8.1f %6.2f", known->second, gflops(shape.macs(tokens), t.best) / known->second);
          }
          std::printf("\n");
          std::fflush(stdout);
        }
      }
      const Times t = measure([&] { pack(0); }, settings.budget());
      const auto source = static_cast<double>(shape.rows * packing.file_row_bytes(shape.cols));
      std::printf("%-8s%-6s %5lld x %-5lld: %.1f GB/s of the file's bytes (median %.1f)\n", packing.format.c_str(), "pack",
                  static_cast<long long>(shape.rows), static_cast<long long>(shape.cols), source / t.best * 1e-9, source / t.median * 1e-9);
    }
  }
}

// ---------------------------------------------------------------- float32: our kernel beside OpenBLAS
Times quicker(Times a, Times b) { return {std::min(a.best, b.best), std::min(a.median, b.median)}; }

void float32_table(const Settings& settings) {
  const std::vector<Shape> shapes = settings.quick
                                        ? std::vector<Shape>{{1152, 384}, {2048, 2048}}
                                        : std::vector<Shape>{{1152, 384}, {384, 384}, {1536, 384}, {384, 1536}, {2048, 2048}, {576, 1536}};
  const auto rounded = packing_of(MatrixShape{.name = "", .rows = 8, .cols = 32, .rounding = Rounding::floats});
  std::printf(
      "\nfloat32 products, one thread, GFLOP/s, best (the best median of four turns). The engine takes %s here (PUMICE_SGEMM), and %s for "
      "weights that may be "
      "rounded.\nOpenBLAS: in the engine's tiles (equal rows equal in any batch), and in one call on the whole product (not so).\n",
      sgemm_by_blas() ? "OpenBLAS" : "its own kernel", rounded == cpu::Packing::fixed ? "fixed point" : "the same");
  if (blas() == nullptr) {
    std::printf("not run: there is no OpenBLAS, %s\n", blas_why_not().c_str());
    return;
  }
  std::printf("%5s x %-5s %6s | %18s | %18s | %18s | %10s %10s | %s\n", "rows", "cols", "tokens", "own", "OpenBLAS, tiles",
              "OpenBLAS, one call", "own/tiles", "own/call", "ahead");
  const FormatKernels& k = kernels().matrix[Format::F32];
  Activations x(2048);
  std::vector<float> out(static_cast<std::size_t>(kMostTokens * 2048));
  for (const Shape shape : shapes) {
    const std::int64_t group_bytes = k.group_bytes(shape.cols), bytes = shape.rows / kGroupRows * group_bytes;
    const std::int64_t all_copies = ceil_div(kFromMemory, bytes);
    const HugeBuffer memory(all_copies * bytes);
    for (std::int64_t at = 0; at < all_copies * bytes; at += group_bytes) {
      k.pack_group(reinterpret_cast<const std::uint8_t*>(x.floats.data()), shape.cols * 4, kGroupRows, shape.cols, memory.get() + at);
    }
    const Way own{"f32", [&](const std::uint8_t* w, std::int64_t rows, std::int64_t cols, std::int64_t, std::int64_t first,
                             std::int64_t count, float* to, std::int64_t stride) {
                    k.product_f32(w, rows, cols, x.row(first, cols), activation_stride(cols), count, to, stride);
                  }};
    for (const std::int64_t tokens : {8, 32, 128, 512}) {
      const double macs = shape.macs(tokens);
      Times ours{1e30, 1e30};
      Rivals theirs{ours, ours};
      // The kernels take turns, so that a slow moment of the machine affects both.
      for (int turn = 0; turn < (settings.quick ? 1 : 4); ++turn) {
        ours = quicker(ours, time_product(own, memory.get(), tokens <= kNarrowRows ? all_copies : 1, bytes, group_bytes, shape, tokens,
                                          out.data(), settings.budget()));
        const Rivals now = openblas(shape, tokens, x, settings);
        theirs = {quicker(theirs.panels, now.panels), quicker(theirs.whole, now.whole)};
      }
      const auto cell = [&](Times t) { std::printf(" | %8.1f (%7.1f)", gflops(macs, t.best), gflops(macs, t.median)); };
      std::printf("%5lld x %-5lld %6lld", static_cast<long long>(shape.rows), static_cast<long long>(shape.cols),
                  static_cast<long long>(tokens));
      cell(ours);
      cell(theirs.panels);
      cell(theirs.whole);
      const double best = std::min(theirs.panels.best, theirs.whole.best);
      std::printf(" | %10.2f %10.2f | %s\n", theirs.panels.best / ours.best, theirs.whole.best / ours.best,
                  ours.best <= best ? "own" : "OpenBLAS");
      std::fflush(stdout);
    }
  }
}

// ---------------------------------------------------------------- rows
// Measures run() and prints a line. `bytes`, `macs` and the printed times are those of one unit. A run consists of `units` units.
void row(const Settings& settings, const std::string& name, double bytes, double macs, const std::function<void()>& run, double units = 1) {
  Times t = measure(run, settings.budget());
  t.best /= units, t.median /= units;
  std::printf("%-44s | %10.1f %10.1f | %6.1f", name.c_str(), t.best * 1e9, t.median * 1e9, bytes / t.best * 1e-9);
  if (macs > 0) std::printf(" | %5.1f", macs / t.best / settings.hz);
  std::printf("\n");
  std::fflush(stdout);
}

std::string label(const char* name, std::int64_t n, const char* more = "") { return std::string(name) + " of " + std::to_string(n) + more; }

// Measures convolutions, and recurrences over one head. Steps of many rows use the same strip of the state again and again, so the strip
// stays in the L1 cache. Steps of one row read and write the whole state in memory, as decoding does.
void recurrent_rows(const Settings& settings, const RowKernels& k) {
  constexpr int dim = 128;
  constexpr std::int64_t most = 512, strip = dim * kStripCols, head = dim / kStripCols * strip;
  const std::vector<float> q =
      random_values<float>(most * dim, [](std::uint32_t r) { return static_cast<float>(r % 1000) * 2e-4f - 0.1f; });
  const std::vector<float> decay(most, 0.9f), gain(most, 0.1f);
  std::vector<float> out(static_cast<std::size_t>(most * dim));
  for (const std::int64_t n : {2048, 8192}) {
    const float* const read[4] = {q.data(), q.data() + n, q.data() + 2 * n, q.data() + 3 * n};
    row(settings, label("conv of 4 taps, silu,", n), 24.0 * static_cast<double>(n), 4.0 * static_cast<double>(n),
        [&] { k.conv(read, q.data() + 4 * n, nullptr, 4, Activation::silu, n, out.data()); });
  }
  const std::int64_t heads = ceil_div(kFromMemory, head * static_cast<std::int64_t>(sizeof(float)));
  const HugeBuffer memory(2 * heads * head * static_cast<std::int64_t>(sizeof(float)));
  auto* const states = reinterpret_cast<float*>(memory.get());
  for (const ScanRule rule : {ScanRule::ssd, ScanRule::delta}) {
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{64}, most}) {
      std::int64_t at = 0;
      const double bytes = 4.0 * (2.0 * static_cast<double>(head) / static_cast<double>(rows) + 4 * dim),
                   macs = (rule == ScanRule::delta ? 3 : 2) * head;
      const auto step = [&] {
        const float* from = states + at % heads * head;
        float* to = states + (heads + at % heads) * head;
        ++at;
        for (std::int64_t s = 0; s < dim / kStripCols; ++s) {
          const ScanCall call{.q = q.data(),
                              .k = q.data(),
                              .v = q.data() + s * kStripCols,
                              .q_stride = dim,
                              .k_stride = dim,
                              .v_stride = dim,
                              .decay = decay.data(),
                              .gain = gain.data(),
                              .key_dim = dim,
                              .rule = rule,
                              .skip = 0.5f,
                              .out = out.data() + s * kStripCols,
                              .out_stride = dim};
          k.scan(call, rows, kStripCols, from + s * strip, to + s * strip);
        }
      };
      row(settings,
          str("scan ", kScanRules[static_cast<std::size_t>(rule)], ", a head of 128 x 128, steps of ", rows, rows == 1 ? " row" : " rows"),
          bytes, macs, step, static_cast<double>(rows));
    }
  }
}

void rows_table(const Settings& settings) {
  const RowKernels& k = kernels().rows;
  constexpr std::int64_t kWide = 1 << 18;
  Activations x(2048);
  float* const a = x.floats.data();  // the buffer has 512 x 2048 floats; a, b and c need fewer (3 x kWide)
  float *const b = a + kWide, *const c = b + kWide;
  std::printf(
      "\nRow kernels, one thread, operands in the caches but for attend. GB/s: of what has to be read and written.\n%-44s | %10s %10s | "
      "%6s | %s\n",
      "", "ns a call", "median", "GB/s", "MAC/cycle");
  for (const std::int64_t n : {576, 2048, 4096})
    row(settings, label("rms_norm", n), 12.0 * static_cast<double>(n), 0, [=] { k.rms_norm(a, b, nullptr, 1e-5f, n, c); });
  row(settings, label("layer_norm", 384, ", with add"), 20.0 * 384, 0, [=] { k.layer_norm(a, b, b + 384, a + 4096, 1e-5f, 384, c); });
  row(settings, label("layer_norm", 1024, ", with add"), 20.0 * 1024, 0, [=] { k.layer_norm(a, b, b + 1024, a + 4096, 1e-5f, 1024, c); });
  // These kernels work in place, so each run first copies the result of a product to the tile.
  const std::int64_t tile = kBlockRows * kBlockGroups * kGroupRows, width = kBlockGroups * kGroupRows;
  const std::vector<float> product(a, a + tile);
  const double tile_bytes = 4.0 * static_cast<double>(tile);
  const auto fresh = [=, &product] { std::memcpy(c, product.data(), static_cast<std::size_t>(tile) * sizeof(float)); };
  row(settings, "a tile of 96 x 64, copied", 2 * tile_bytes, 0, fresh);
  const auto epilogue = [&](const char* name, Activation activation, const float* residual) {
    row(settings, std::string("the same copied, then epilogue: bias") + name, (residual != nullptr ? 5 : 4) * tile_bytes, 0, [=] {
      fresh();
      k.epilogue(c, width, kBlockRows, width, {.bias = b, .activation = activation, .residual = residual, .residual_stride = width});
    });
  };
  epilogue("", Activation::none, nullptr);
  epilogue(", gelu", Activation::gelu, nullptr);
  epilogue(", residual", Activation::none, b);
  const auto gate = [&](std::int64_t n) {
    row(settings, label("gate silu", n, ", copied first"), 20.0 * static_cast<double>(n), 0, [=] {
      std::memcpy(c, a, static_cast<std::size_t>(n) * sizeof(float));
      k.gate(c, b, {.activation = Activation::silu}, n);
    });
  };
  gate(1536);
  gate(8192);
  row(settings, label("scale_add", 2048, ", two more"), 16.0 * 2048, 0, [=] { k.scale_add(a, 0.5f, b, b + 2048, 2048, c); });
  for (const int dims : {64, 128}) {
    for (const bool interleaved : {false, true}) {
      row(settings, label("rope", dims, interleaved ? ", interleaved" : ", halves"), 12.0 * dims, 0, [=] {
        std::memcpy(c, a, static_cast<std::size_t>(dims) * sizeof(float));
        k.rope(c, b, b + dims / 2, dims, interleaved);
      });
    }
  }
  for (const std::int64_t n : {384, 2048}) {
    const QuantRows q = x.quant(1, n);
    const FixedRows f = x.fixed(1, n);
    row(settings, label("quantize", n), 5.4 * static_cast<double>(n), 0, [=] { k.quantize(a, n, 1, 0, q); });
    row(settings, label("quantize_fixed", n), 6.125 * static_cast<double>(n), 0, [=] { k.quantize_fixed(a, n, 1, 0, f); });
  }
  row(settings, "pool mean, 32 rows of 384", 4.0 * 33 * 384, 0, [=] { k.pool(a, 384, 0, 32, 384, PoolKind::mean, c); });
  for (const std::int64_t n : {49152, 128256}) {
    volatile double sink = 0;
    row(settings, label("log_sum_exp", n), 4.0 * static_cast<double>(n), 0, [&, n] { sink = k.log_sum_exp(a, n); });
  }
  recurrent_rows(settings, k);
  const auto format_name = [](KvFormat format) { return format == KvFormat::f16 ? "f16" : format == KvFormat::f32 ? "f32" : "q8_0"; };
  for (const int dim : {64, 128}) {
    for (const KvFormat format : {KvFormat::f16, KvFormat::q8_0, KvFormat::f32}) {
      const std::int64_t page_bytes = kv_page_bytes(format, dim, dim);
      const std::int64_t all_pages = ceil_div(kFromMemory, page_bytes);
      const HugeBuffer memory(all_pages * page_bytes);
      std::vector<const std::uint8_t*> pages;
      for (std::int64_t p = 0; p < all_pages; ++p) {
        std::uint8_t* page = memory.get() + p * page_bytes;
        k.kv_store(format, dim, dim, a + p % 64 * dim, b + p % 64 * dim, dim, dim, 0, kPageTokens, page);
        pages.push_back(page);
      }
      const std::string of = std::string(" of ") + format_name(format) + ", head_dim " + std::to_string(dim);
      row(settings, "kv_store of a page" + of, 8.0 * kPageTokens * dim + static_cast<double>(page_bytes), 0,
          [&] { k.kv_store(format, dim, dim, a, b, dim, dim, 0, kPageTokens, memory.get()); });
      for (const std::int64_t keys : {512, 4096, 8192}) {
        if (settings.quick && keys != 4096) continue;
        const std::int64_t of_head = keys / kPageTokens, heads = all_pages / of_head;
        for (const int count : {1, 4, kMaxQueries}) {  // 4 query heads share a kv head in Llama 3 and Mistral
          std::vector<Query> queries;
          for (int i = 0; i < count; ++i) queries.push_back({a + i * dim, 0, keys});
          std::vector<float> partials(static_cast<std::size_t>(keys / kChunkKeys * count * (dim + 2)));
          std::int64_t head = 0;  // each call reads the pages of another head, so that they come from memory as in a model
          row(settings, "attend " + std::to_string(count) + (count == 1 ? " query, " : " queries, ") + std::to_string(keys) + " keys" + of,
              static_cast<double>(of_head * page_bytes), 2.0 * static_cast<double>(keys * dim * count), [&] {
                AttendCall call{format, dim, dim, 0.125f, 0.0f, pages.data() + head * of_head, 0};
                for (; call.chunk < keys / kChunkKeys; ++call.chunk) {
                  k.attend(call, queries.data(), count, partials.data() + call.chunk * count * (dim + 2));
                }
                head = (head + 1) % heads;
              });
        }
      }
    }
    const std::int64_t chunks = 8192 / kChunkKeys, stride = dim + 2;
    std::vector<float> partials(static_cast<std::size_t>(chunks * stride), 1.0f);
    row(settings, "merge of 32 chunks, head_dim " + std::to_string(dim), 4.0 * static_cast<double>(chunks * stride + dim), 0,
        [&] { k.merge(partials.data(), chunks, stride, dim, 0.0f, c); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Settings settings;
    for (int i = 1; i < argc; ++i) {
      if (std::string_view(argv[i]) == "--quick") {
        settings.quick = true;
        continue;
      }
      if (std::string_view(argv[i]) == "--short") {
        settings.only_short = true;
        continue;
      }
      const auto format = format_from_name(argv[i]);
      if (!format) {
        std::fprintf(stderr, "usage: ops_bench [--quick] [--short] [format ...]; '%s' is no weight format\n", argv[i]);
        return 2;
      }
      settings.formats.push_back(*format);
    }
    settings.hz = clock_hz();
    print_limits(settings);
    products(settings);
    if (settings.formats.empty() && !settings.only_short) {
      float32_table(settings);
      rows_table(settings);
    }
    std::printf("\nat the end: %.2f GHz\n", clock_hz() * 1e-9);
    print_reads(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
