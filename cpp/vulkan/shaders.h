// The SPIR-V that the build made of shaders/*.comp: part of the module, read from no file.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace pumice::vulkan {

struct Shader {
  std::string_view name;  // of its source: "gemm" for shaders/gemm.comp
  std::span<const std::uint32_t> words;
};

std::span<const Shader> shaders();                             // by name
std::span<const std::uint32_t> shader(std::string_view name);  // Error device when there is none

}  // namespace pumice::vulkan
