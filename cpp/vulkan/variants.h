// A variant is a faster way to compute products on devices that have a certain feature. Drivers have bugs in these features. So before a
// program uses a variant for the first time on a device, the results of the variant are compared with those of the plain shaders (the
// baseline). If they differ too much, the variant is switched off.
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
std::string_view name(Variant variant);  // returns the name that PUMICE_VULKAN_DISABLE and PUMICE_VULKAN_ENABLE use

struct Variants {
  bool integer_dot = false;         // products of quantized weights and int8 activations
  bool cooperative_matrix = false;  // products of many rows, which multiply in f16 and add in float32
};

class VariantTests {
 public:
  explicit VariantTests(Device& device) : device_(device) {}
  // Returns those of the `wanted` variants that pass their test on this device. Each variant is tested once, when it is first wanted. A
  // test takes about 50 ms on a GPU. The pipelines that a test compiles are kept, and models use them, too.
  Variants passed(const Variants& wanted, const Cancel& cancel);
  std::vector<std::string> notes() const;  // "integer_dot is off: ..." for each variant that failed

 private:
  enum class State { untested, works, off };
  bool works(Variant variant, const Cancel& cancel);

  Device& device_;
  mutable std::mutex mutex_;  // guards notes_
  std::mutex testing_;        // held during a test; guards states_
  State states_[std::size(kVariants)] = {};
  std::vector<std::string> notes_;
};

}  // namespace pumice::vulkan
