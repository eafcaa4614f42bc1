// The SPIR-V that the build made from shaders/*.comp. It is embedded in the Python module, so that no file is read at run time.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace pumice::vulkan {

struct Shader {
  std::string_view name;  // "gemm" for shaders/gemm.comp
  std::span<const std::uint32_t> words;
};

std::span<const Shader> shaders();                             // all shaders, sorted by name
std::span<const std::uint32_t> shader(std::string_view name);  // throws ErrorKind::device if there is no such shader

}  // namespace pumice::vulkan
