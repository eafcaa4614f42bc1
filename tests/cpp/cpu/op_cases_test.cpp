// Every operation of tests/op_cases.json on the CPU must agree with the reference backend, and a row's bits must depend on that row alone.
#include "reference/op_cases.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
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
// set. The child process writes a hash of each result to the file that this environment variable names.
constexpr const char* kDigests = "PUMICE_OP_DIGESTS";
// If this environment variable is N, only every Nth case is run. tests/arm/run.py sets it, because emulated cases are slow.
constexpr const char* kStride = "PUMICE_OP_STRIDE";
// The names of cases begin with this if instruction sets with BF16 products may give bits of their own.
constexpr const char* kOwnBits = "may round to bfloat16, ";

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

std::map<std::string, std::uint64_t> digests() {
  const auto cpu = cpu::make_backend(1);
  std::map<std::string, std::uint64_t> all;
  const char* stride = std::getenv(kStride);
  const std::size_t step = stride != nullptr ? std::stoul(stride) : 1;
  for (std::size_t i = 0; i < op_cases().size(); i += step) {
    const OpCase c = op_cases()[i];
    for (const Compute compute : compute_modes(c)) {
      const char* own = compute == Compute::automatic && may_round_to_bf16(c) ? kOwnBits : "";
      std::uint64_t& hash = all[str(own, name(compute), ": ", c.name)] = 0xcbf29ce484222325u;  // FNV-1a over 32-bit words
      for (const float x : OpRun(c, *cpu, compute)(cases::all_rows(c))) hash = (hash ^ std::bit_cast<std::uint32_t>(x)) * 0x100000001b3u;
    }
  }
  return all;
}

TEST(OpCases, InstructionSetsAgree) {
  const auto here = digests();
  if (const char* path = std::getenv(kDigests)) {
    std::ofstream file(path);
    for (const auto& [c, hash] : here) file << hash << ' ' << c << '\n';
    ASSERT_TRUE(file.flush());
    return;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  for (const cpu::Kernels* kernels : cpu::native_kernels()) {
    const char* isa = kernels->isa;
    if (std::string_view(isa) == cpu::kernels().isa) continue;
    const bool rounds = rounds_to_bf16(*kernels) || rounds_to_bf16(cpu::kernels());
    const std::string path = testing::TempDir() + str("pumice_digests_", isa, "_", ::getpid());
    const std::string command =
        str("PUMICE_ISA=", isa, " ", kDigests, "='", path, "' '", self, "' --gtest_filter=OpCases.InstructionSetsAgree > /dev/null");
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    std::ifstream file(path);
    std::size_t read = 0;
    std::string line;
    while (std::getline(file, line)) {
      const auto space = line.find(' ');
      const auto c = here.find(line.substr(space + 1));
      ASSERT_NE(c, here.end()) << line;
      ++read;
      if (rounds && c->first.starts_with(kOwnBits)) continue;
      EXPECT_EQ(std::to_string(c->second), line.substr(0, space)) << cpu::kernels().isa << " and " << isa << " differ: " << c->first;
    }
    EXPECT_EQ(read, here.size());
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace pumice
