// Chooses the kernels once, by the instructions that the processor and the operating system support.
#include "cpu/kernels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "cpu/processor.h"

namespace pumice::cpu {
namespace {

// An instruction set. `runs` is true if this machine supports it.
struct Known {
  bool runs;
  Kernels kernels;
};
// Returns all instruction sets of this processor family, the best one first.
const auto& known() {
  static const auto all = std::to_array<Known>({
#define PUMICE_ISA(name, matrix, rows, options) {runs_##name(), {#name, matrix, rows}},
#include "cpu/isa/sets.def"
#undef PUMICE_ISA
  });
  return all;
}

const Kernels& choose() {
  const char* wanted = std::getenv("PUMICE_ISA");
  std::string names, here;
  for (const Known& candidate : known()) {
    const std::string separator = names.empty() ? "" : ", ";
    names += separator + candidate.kernels.isa;
    if (!candidate.runs) continue;
    here += (here.empty() ? "" : ", ") + std::string(candidate.kernels.isa);
    if (wanted == nullptr || *wanted == '\0' || std::string_view(wanted) == candidate.kernels.isa) return candidate.kernels;
  }
  fail(ErrorKind::invalid_argument, "the environment variable PUMICE_ISA is \"", wanted, "\"; known are ", names,
       ", and this machine runs ", here, ". Unset it to take the best one");
}

}  // namespace

bool runs_scalar() { return true; }

const Fetches& fetches() {
  static const Fetches chosen = measured_fetches();
  return chosen;
}

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

std::span<const char* const> known_isas() {
  static const auto names = [] {
    std::array<const char*, std::tuple_size_v<std::remove_cvref_t<decltype(known())>>> all;
    std::transform(known().rbegin(), known().rend(), all.begin(), [](const Known& candidate) { return candidate.kernels.isa; });
    return all;
  }();
  return names;
}

const Kernels* kernels_for(const char* isa) {
  for (const Known& candidate : known()) {
    if (candidate.runs && std::string_view(isa) == candidate.kernels.isa) return &candidate.kernels;
  }
  return nullptr;
}

std::int64_t kv_page_bytes(KvFormat format, int key_dim, int value_dim) {
  for (const auto& [dim, most] : {std::pair(key_dim, kMaxKeyDim), std::pair(value_dim, kMaxValueDim)}) {
    if (dim < 1 || dim > most)
      fail(ErrorKind::unsupported_model, "attention heads have ", dim, " dimensions; this version runs 1 to ", most);
  }
  const std::int64_t values = std::int64_t{kPageTokens} * (std::int64_t{key_dim} + value_dim);
  switch (format) {
    case KvFormat::f16:
      return values * 2;
    case KvFormat::f32:
      return values * 4;
    case KvFormat::q8_0:
      return (values + 2 * kPageTokens * static_cast<std::int64_t>(sizeof(float)) + 63) / 64 * 64;
  }
  fail(ErrorKind::invalid_argument, "unknown cache format ", static_cast<int>(format));
}

}  // namespace pumice::cpu
