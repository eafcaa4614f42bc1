// The SPIR-V that the build made from shaders/*.comp. It is part of the module, so that no file is read at run time.
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
std::span<const std::uint32_t> shader(std::string_view name);  // throws device if there is none

}  // namespace pumice::vulkan
