#include "engine/diagnostics.h"

#include "core/error.h"
#include "cpu/blas.h"
#include "cpu/kernels.h"
#include "cpu/self_test.h"
#include "os/limits.h"
#if PUMICE_VULKAN
#include "vulkan/device.h"
#endif

namespace pumice::engine {

CpuFacts cpu_facts() {
  CpuFacts facts{.isa = isa(), .threads = os::default_threads(), .huge_pages = os::huge_pages()};
  for (const char* name : cpu::known_isas()) {
    if (cpu::kernels_for(name)) facts.isas.emplace_back(name);
  }
  const cpu::Blas* blas = cpu::blas();
  facts.blas = blas ? str(blas->path(), " (", blas->config(), ")") : str("none: ", cpu::blas_why_not());
  return facts;
}

std::string isa() { return cpu::kernels().isa; }

std::vector<KernelCheck> check_kernels() {
  std::vector<KernelCheck> found;
  for (const cpu::Check& check : cpu::self_test()) found.push_back({check.name, check.error, check.limit, check.ok()});
  return found;
}

std::vector<std::string> vulkan_messages() {
#if PUMICE_VULKAN
  return vulkan::validation_messages();
#else
  return {};
#endif
}

}  // namespace pumice::engine
