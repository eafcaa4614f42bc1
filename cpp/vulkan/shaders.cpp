#include "vulkan/shaders.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

// Declares two arrays for each shader. They are labels in shaders.S, at the beginning and at the end of the shader's SPIR-V.
#define PUMICE_SHADER(name, path) \
  extern "C" __attribute__((visibility("hidden"))) const std::uint32_t pumice_spirv_##name[], pumice_spirv_end_##name[];
#include "shaders.def"
#undef PUMICE_SHADER

namespace pumice::vulkan {

std::span<const Shader> shaders() {
  static const auto& all = *new std::vector<Shader>{
#define PUMICE_SHADER(name, path) {#name, {pumice_spirv_##name, pumice_spirv_end_##name}},
#include "shaders.def"
#undef PUMICE_SHADER
  };
  return all;
}

std::span<const std::uint32_t> shader(std::string_view name) {
  const auto all = shaders();
  const auto found =
      std::lower_bound(all.begin(), all.end(), name, [](const Shader& each, std::string_view wanted) { return each.name < wanted; });
  if (found == all.end() || found->name != name)
    fail(ErrorKind::device, "shader \"", name, "\" is not in this build of pumice: shaders/", name, ".comp was missing");
  return found->words;
}

}  // namespace pumice::vulkan
