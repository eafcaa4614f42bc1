// Every operation on Vulkan must agree with the reference backend over the cases of tests/op_cases.json. The device is vulkan:0, or the one
// whose index is in PUMICE_TEST_VULKAN. Limits and variants come from the environment (vulkan/device.h), so that the suite can also run
// with tiny limits. Software Vulkan takes up to a second to make a pipeline, so the suite runs only a sample of the cases, or all of them
// with PUMICE_TEST_ALL=1.
#include "reference/op_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "reference/reference_backend.h"
#include "vulkan/chosen_device.h"
#include "vulkan/device.h"
#include "vulkan/vulkan_backend.h"

namespace pumice {
namespace {

using cases::op_cases;
using cases::OpCase;
using cases::OpRun;
using cases::Slice;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Returns the indices of the cases that run for an operation: the first case of each format or kind, and every 13th case. Thirteen is not a
// period of the sizes in the file, so these cases have many different sizes. AddressSanitizer sees no code of shaders, of which each format
// has its own, so it runs only every 13th case.
std::vector<std::size_t> chosen(const std::string& op) {
  const char* all = std::getenv("PUMICE_TEST_ALL");
  const bool every = all != nullptr && std::string(all) == "1";
  std::vector<std::size_t> cases;
  std::set<std::string> variants;
  for (std::size_t i = 0, seen = 0; i < op_cases().size(); ++i) {
    if (op_cases().op(i) != op) continue;
    const bool first = variants.insert(op_cases().variant(i)).second;
    if (every || (first && !kSanitized) || seen % 13 == 12) cases.push_back(i);
    ++seen;
  }
  return cases;
}

// Returns slices that together run all rows in order: 1, 2 and 5 rows, then all remaining rows but one, then the last row. So most runs
// find earlier positions in the cache. Operations that need whole segments get one segment per slice.
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
  for (const std::int32_t count : {1, 2, 5}) take(std::min(count, c.rows - at));
  take(c.rows - at - 1);
  take(c.rows - at);
  return slices;
}

class VulkanOpCases : public testing::TestWithParam<std::string> {
 protected:
  // All tests share one device, so that each pipeline is made once. TearDownTestSuite() closes the device before the process ends, so that
  // the validation layer (validation_test.cpp) can report what was not freed.
  static void SetUpTestSuite() { device = vulkan::make_backend(vulkan::chosen_index()); }
  static void TearDownTestSuite() { device.reset(); }
  static inline std::shared_ptr<Backend> device;
};

TEST_P(VulkanOpCases, AnswerToTheReference) {
  reference::ReferenceBackend reference;
  std::map<std::string, double> worst;
  const std::vector<std::size_t> indices = chosen(GetParam());
  for (const std::size_t i : indices) {
    const OpCase c = op_cases()[i];
    try {
      const auto truth = OpRun(c, reference, Compute::float32)(cases::all_rows(c));
      for (const Compute compute : {Compute::float32, Compute::automatic}) {
        if (compute == Compute::automatic && !c.computes_twice) continue;
        const double limit = compute == Compute::float32 ? c.nmse_float32 : c.nmse_automatic;
        OpRun run(c, *device, compute);
        const double error = cases::nmse(run(cases::all_rows(c)), truth, c.floor);
        EXPECT_LE(error, limit) << (compute == Compute::float32 ? "float32: " : "automatic: ") << c.name;
        double& largest = worst[str(compute == Compute::float32 ? "float32" : "automatic", "_limit_", limit)];
        largest = std::max(largest, error);
        // The pieces run twice, because the second time replays the recordings of the first.
        if (c.op == "select") continue;
        for (int again = 0; again < 2; ++again) {
          std::vector<float> apart;
          for (const Slice& slice : pieces(c)) {
            const auto rows = run(slice);
            apart.insert(apart.end(), rows.begin(), rows.end());
          }
          EXPECT_LE(cases::nmse(apart, truth, c.floor), limit) << "in pieces, run " << again << ": " << c.name;
        }
      }
    } catch (const Error& error) {
      ADD_FAILURE() << c.name << "\n  " << error.what();
    }
  }
  EXPECT_FALSE(indices.empty());
  for (const auto& [group, error] : worst) RecordProperty(group, str(error));
}

INSTANTIATE_TEST_SUITE_P(Ops, VulkanOpCases, testing::ValuesIn(op_names()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace pumice
