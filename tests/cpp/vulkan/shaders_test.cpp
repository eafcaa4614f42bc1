#include "vulkan/shaders.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace pumice::vulkan {
namespace {

// From the SPIR-V specification 1.5: section 2.3 (a header of five words; the first word of an instruction is length << 16 | opcode), and
// the numbers in sections 3.31 and 3.52.
constexpr std::uint32_t kMagic = 0x07230203, kVersion15 = 0x00010500;
enum Opcode : std::uint32_t { kName = 5, kMemberName = 6, kCapability = 17 };
enum Capability : std::uint32_t { kShader = 1, kGroupNonUniform = 61, kGroupNonUniformArithmetic = 63 };

std::vector<std::uint32_t> first_operands(const Shader& shader, Opcode opcode) {
  std::vector<std::uint32_t> found;
  for (std::size_t at = 5; at < shader.words.size();) {
    const std::uint32_t length = shader.words[at] >> 16;
    if (length == 0 || at + length > shader.words.size()) {
      ADD_FAILURE() << shader.name << " is cut off at word " << at << " of " << shader.words.size();
      break;
    }
    if ((shader.words[at] & 0xffff) == opcode) found.push_back(shader.words[at + 1]);
    at += length;
  }
  return found;
}

// Variants of shaders need optional features. device.cpp builds a variant only on a device that has them.
bool is_variant(std::string_view name) { return name.ends_with("_i8") || name.ends_with("_coopmat"); }

TEST(Shaders, EverySourceIsInTheModule) {
  std::set<std::string> sources, embedded;
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(PUMICE_TESTS_DIR).parent_path() / "shaders")) {
    if (file.path().extension() == ".comp") sources.insert(file.path().stem().string());
  }
  for (const Shader& each : shaders()) embedded.emplace(each.name);
  EXPECT_FALSE(sources.empty());
  EXPECT_EQ(embedded, sources);
  for (const std::string& name : sources) EXPECT_GT(shader(name).size(), 5u) << name;
}

TEST(Shaders, AreSpirvForVulkan12WithoutNames) {
  for (const Shader& each : shaders()) {
    ASSERT_GT(each.words.size(), 5u) << each.name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(each.words.data()) % 4, 0u) << each.name;
    EXPECT_EQ(each.words[0], kMagic) << each.name;
    EXPECT_LE(each.words[1], kVersion15) << each.name;
    EXPECT_TRUE(first_operands(each, kName).empty()) << each.name;
    EXPECT_TRUE(first_operands(each, kMemberName).empty()) << each.name;
  }
}

TEST(Shaders, BaselineNeedsNothingOptional) {
  const std::set<std::uint32_t> baseline{kShader, kGroupNonUniform, kGroupNonUniformArithmetic};
  for (const Shader& each : shaders()) {
    if (is_variant(each.name)) continue;
    for (std::uint32_t capability : first_operands(each, kCapability)) {
      EXPECT_TRUE(baseline.contains(capability))
          << each.name << " declares capability " << capability << ", which a Vulkan 1.2 device may lack";
    }
  }
}

TEST(Shaders, AllTogetherStayUnderOneMebibyte) {
  std::size_t bytes = 0;
  for (const Shader& each : shaders()) bytes += each.words.size_bytes();
  RecordProperty("bytes", std::to_string(bytes));
  EXPECT_LT(bytes, std::size_t{1} << 20);
}

TEST(Shaders, AnUnknownNameIsATypedError) {
  for (const char* name : {"", "gem", "no such shader", "\xff"}) {
    try {
      shader(name);
      ADD_FAILURE() << "found " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::device);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace pumice::vulkan
