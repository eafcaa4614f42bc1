// Variants are faster forms of products for devices with certain features. Drivers have bugs in these features. So when a program first
// wants a variant, its products are compared with the baseline's on this device. If they differ, the variant is switched off.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/cancel.h"

namespace pumice::vulkan {

class Device;

enum class Variant { integer_dot, cooperative_matrix };
inline constexpr Variant kVariants[] = {Variant::integer_dot, Variant::cooperative_matrix};
std::string_view name(Variant variant);  // as written in PUMICE_VULKAN_DISABLE and PUMICE_VULKAN_ENABLE

// Says which variants a program may use.
struct Variants {
  bool integer_dot = false;         // products of quantized weights on int8 activations
  bool cooperative_matrix = false;  // products of many rows: f16 x f16, sums in float32
};

class VariantTests {
 public:
  explicit VariantTests(Device& device) : device_(device) {}
  // Returns those of the `wanted` variants that pass their test on this device. Each variant is tested when it is first wanted. A test
  // takes about 50 ms on a GPU. Models use the pipelines that it compiles.
  Variants passed(const Variants& wanted, const Cancel& cancel);
  std::vector<std::string> notes() const;  // "integer_dot is off: ..." for each variant that failed

 private:
  enum class State { untested, works, off };
  bool works(Variant variant, const Cancel& cancel);

  Device& device_;
  mutable std::mutex mutex_;  // guards notes_
  std::mutex testing_;
  State states_[std::size(kVariants)] = {};
  std::vector<std::string> notes_;
};

}  // namespace pumice::vulkan
