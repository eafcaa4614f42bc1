// Every operation of tests/op_cases.json on the CPU must agree with the reference backend, and a row's bits must depend on that row alone.
#include "reference/op_cases.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/error.h"
#include "cpu/cpu_backend.h"
#include "cpu/all_kernels.h"
#include "reference/reference_backend.h"

namespace pumice {
namespace {

using cases::op_cases;
using cases::OpCase;
using cases::OpRun;
using cases::Slice;

std::vector<Compute> compute_modes(const OpCase& c) {
  return c.computes_twice ? std::vector{Compute::float32, Compute::automatic} : std::vector{Compute::automatic};
}
const char* name(Compute compute) { return compute == Compute::float32 ? "float32" : "automatic"; }

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y); });
}
std::string first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return str(a.size(), " numbers and ", b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return str("number ", i, ": ", a[i], " and ", b[i]);
  }
  return "none";
}

// Returns slices that together run all rows in order: 1, 1, 2, 3 and 5 rows, then all remaining rows but one, then the last row. So most
// calls find earlier positions in the cache. Operations that need whole segments get one segment per call.
std::vector<Slice> pieces(const OpCase& c) {
  std::vector<Slice> slices;
  std::int32_t at = 0;
  const auto take = [&](std::int32_t count) {
    if (count > 0) slices.push_back(cases::some_rows(c, at, count));
    at += std::max(count, 0);
  };
  if (cases::needs_whole_segments(c)) {
    for (const cases::Sequence& s : c.sequences) take(s.rows);
    return slices;
  }
  for (const std::int32_t count : {1, 1, 2, 3, 5}) take(std::min(count, c.rows - at));
  take(c.rows - at - 1);
  take(c.rows - at);
  return slices;
}

class OpCaseTest : public testing::TestWithParam<std::string> {
 protected:
  template <class Check>
  void each_case(Check check) {
    std::size_t seen = 0;
    for (std::size_t i = 0; i < op_cases().size(); ++i) {
      if (op_cases().op(i) != GetParam()) continue;
      ++seen;
      const OpCase c = op_cases()[i];
      try {
        check(c);
      } catch (const Error& error) {
        ADD_FAILURE() << c.name << "\n  " << error.what();
      }
    }
    EXPECT_GT(seen, 0u);
  }
};

TEST_P(OpCaseTest, AnswersToTheReference) {
  reference::ReferenceBackend reference;
  const auto cpu = cpu::make_backend(1);
  std::map<std::string, double> worst;
  each_case([&](const OpCase& c) {
    const auto truth = OpRun(c, reference, Compute::float32)(cases::all_rows(c));
    for (const Compute compute : compute_modes(c)) {
      const double limit = compute == Compute::float32 ? c.nmse_float32 : c.nmse_automatic;
      const double error = cases::nmse(OpRun(c, *cpu, compute)(cases::all_rows(c)), truth, c.floor);
      EXPECT_LE(error, limit) << name(compute) << ": " << c.name;
      double& largest = worst[str(name(compute), "_limit_", limit)];
      largest = std::max(largest, error);
    }
  });
  for (const auto& [group, error] : worst) RecordProperty(group, str(error));
}

TEST_P(OpCaseTest, RowsAreIndependent) {
  const auto cpu = cpu::make_backend(1);
  each_case([&](const OpCase& c) {
    if (c.op == "select") return;  // select copies rows of the whole batch
    for (const Compute compute : compute_modes(c)) {
      const auto together = OpRun(c, *cpu, compute)(cases::all_rows(c));
      OpRun run(c, *cpu, compute);
      std::vector<float> apart;
      for (const Slice& slice : pieces(c)) {
        const auto rows = run(slice);
        apart.insert(apart.end(), rows.begin(), rows.end());
      }
      EXPECT_TRUE(same_bits(together, apart)) << name(compute) << ": " << c.name << "\n  " << first_difference(together, apart);
    }
  });
}

TEST_P(OpCaseTest, ThreadsAndCrewsAgree) {
  const auto one = cpu::make_backend(1), three = cpu::make_backend(3);
  each_case([&](const OpCase& c) {
    const auto alone = OpRun(c, *one, Compute::automatic)(cases::all_rows(c));
    const auto team = OpRun(c, *three, Compute::automatic)(cases::all_rows(c));
    const auto solo = OpRun(c, *three, Compute::automatic, Crew::solo)(cases::all_rows(c));
    EXPECT_TRUE(same_bits(alone, team)) << c.name << "\n  " << first_difference(alone, team);
    EXPECT_TRUE(same_bits(alone, solo)) << c.name << "\n  " << first_difference(alone, solo);
  });
}

INSTANTIATE_TEST_SUITE_P(Ops, OpCaseTest, testing::ValuesIn(op_names()), [](const auto& test) { return test.param; });

TEST(OpCases, MeetEveryOperationAndFormat) {
  std::set<std::size_t> ops;
  std::map<std::string, std::set<Format>> formats;
  for (std::size_t i = 0; i < op_cases().size(); ++i) {
    const OpCase c = op_cases()[i];
    for (const Op& op : c.program.ops) ops.insert(op.index());
    for (const Matrix& m : c.weights.matrices) formats[c.op].insert(m.format);
  }
  EXPECT_EQ(ops.size(), std::variant_size_v<Op>);
  for (const char* op : {"embed", "linear", "gated_linear"}) EXPECT_EQ(formats[op].size(), kFormatCount) << op;
}

TEST(OpCases, MeetEveryActivationPoolingNormAndKvFormat) {
  std::map<std::string, std::set<Activation>> activations;
  std::set<NormKind> norms;
  std::set<PoolKind> pools;
  std::set<KvFormat> kv_formats;
  for (std::size_t i = 0; i < op_cases().size(); ++i) {
    const OpCase c = op_cases()[i];
    if (!c.program.caches.empty()) kv_formats.insert(c.kv);
    const Op& op = c.program.ops.back();
    if (const auto* norm = std::get_if<Norm>(&op)) norms.insert(norm->kind);
    if (const auto* pool = std::get_if<Pool>(&op)) pools.insert(pool->kind);
    if (const auto* linear = std::get_if<Linear>(&op)) activations["linear"].insert(linear->activation);
    if (const auto* gated = std::get_if<GatedLinear>(&op)) activations["gated_linear"].insert(gated->activation);
    if (const auto* multiply = std::get_if<Multiply>(&op)) activations["multiply"].insert(multiply->activation);
  }
  EXPECT_EQ(norms.size(), std::size(kNormKinds));
  EXPECT_EQ(pools.size(), std::size(kPoolKinds));
  EXPECT_EQ(kv_formats.size(), std::size(kKvFormats));
  EXPECT_EQ(activations["linear"].size(), std::size(kActivations));
  for (const char* op : {"gated_linear", "multiply"}) EXPECT_EQ(activations[op].size(), std::size(kActivations) - 1) << op << " but xielu";
}

// A process chooses its instruction set only once. So the test InstructionSetsAgree starts its own program again for each other instruction
// set. The child process writes its hashes to the file that this environment variable names.
constexpr const char* kDigests = "PUMICE_OP_DIGESTS";
// If this environment variable is N, only every Nth case is run. tests/arm/run.py sets it, because emulated cases are slow.
constexpr const char* kStride = "PUMICE_OP_STRIDE";
// The hashes of a set of x86-64. The line of a case is that of its number, and has a hash for each of its compute modes. To write this file
// again, name it in PUMICE_OP_DIGESTS, with PUMICE_ISA=avx2, and run the test InstructionSetsAgree.
constexpr const char* kGolden = PUMICE_TESTS_DIR "/goldens/op_digests.txt";

bool rounds_to_bf16(const cpu::Kernels& kernels) {
  return kernels.matrix[Format::BF16].product_bf16 != kernels.matrix[Format::BF16].product_f32;
}
// Returns true if an instruction set with BF16 products may give different bits than the others in this case.
bool may_round_to_bf16(const OpCase& c) {
  for (const Op& op : c.program.ops) {
    const auto* linear = std::get_if<Linear>(&op);
    const bool product = std::holds_alternative<GatedLinear>(op) || std::holds_alternative<HeadLinear>(op) ||
                         std::holds_alternative<Experts>(op) || (linear && !linear->precise);
    if (!product) continue;
    for (const Matrix& m : c.weights.matrices) {
      if (m.format == Format::BF16 && m.rounding == Rounding::none) return true;
    }
  }
  return false;
}

// The results of a case with one compute mode.
struct Digest {
  std::string name;  // of the case and of the mode
  std::uint64_t hash;
  bool may_round;  // instruction sets with BF16 products may give bits of their own
};
// The digests of all cases; those of a case that was not run are empty.
using Digests = std::vector<std::vector<Digest>>;

Digests digests() {
  const auto cpu = cpu::make_backend(1);
  Digests all(op_cases().size());
  const char* stride = std::getenv(kStride);
  const std::size_t step = stride != nullptr ? std::stoul(stride) : 1;
  for (std::size_t i = 0; i < all.size(); i += step) {
    const OpCase c = op_cases()[i];
    for (const Compute compute : compute_modes(c)) {
      std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over 32-bit words
      for (const float x : OpRun(c, *cpu, compute)(cases::all_rows(c))) hash = (hash ^ std::bit_cast<std::uint32_t>(x)) * 0x100000001b3u;
      all[i].push_back({str(c.name, ", ", name(compute)), hash, compute == Compute::automatic && may_round_to_bf16(c)});
    }
  }
  return all;
}

// Compares with the hashes in a file. `rounds`: one of the two instruction sets has BF16 products.
void expect_digests(const Digests& here, const std::string& path, bool rounds, std::string_view isa) {
  std::ifstream file(path);
  std::size_t same = 0;
  std::string line;
  for (const std::vector<Digest>& of_case : here) {
    ASSERT_TRUE(std::getline(file, line)) << path << " ends too early: it must have a line for each case of tests/op_cases.json";
    std::istringstream words(line);
    for (const Digest& digest : of_case) {
      std::uint64_t hash = 0;
      ASSERT_TRUE(words >> std::hex >> hash) << path << " lacks a hash: " << digest.name;
      if (rounds && digest.may_round) continue;
      EXPECT_EQ(digest.hash, hash) << digest.name << ": " << isa << " has other bits than " << cpu::kernels().isa;
      same += digest.hash == hash;
    }
  }
  EXPECT_FALSE(std::getline(file, line)) << path << " has more lines than tests/op_cases.json has cases";
  std::printf("%zu results of %s have the bits of %s\n", same, cpu::kernels().isa, std::string(isa).c_str());
}

TEST(OpCases, InstructionSetsAgree) {
  const Digests here = digests();
  if (const char* path = std::getenv(kDigests)) {
    std::ofstream file(path);
    for (const std::vector<Digest>& of_case : here) {
      for (std::size_t i = 0; i < of_case.size(); ++i) file << (i > 0 ? " " : "") << std::hex << of_case[i].hash;
      file << '\n';
    }
    ASSERT_TRUE(file.flush());
    return;
  }
  const bool rounds = rounds_to_bf16(cpu::kernels());
  expect_digests(here, kGolden, rounds, "the golden");
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  for (const cpu::Kernels* kernels : cpu::native_kernels()) {
    const char* isa = kernels->isa;
    if (std::string_view(isa) == cpu::kernels().isa) continue;
    const std::string path = testing::TempDir() + str("pumice_digests_", isa, "_", ::getpid());
    const std::string command =
        str("PUMICE_ISA=", isa, " ", kDigests, "='", path, "' '", self, "' --gtest_filter=OpCases.InstructionSetsAgree > /dev/null");
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    expect_digests(here, path, rounds || rounds_to_bf16(*kernels), isa);
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace pumice
