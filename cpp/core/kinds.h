// Enums for the variants of operations, and limits. The names of the enum values are in core/ops.h. The kernels of every instruction set
// include this header, so it must not include inline functions or classes of the standard library (docs/adding.md, "An instruction set").
// The linker keeps only one copy of an inline function, and that copy could have instructions that the processor lacks.
#pragma once

#include <cstdint>

namespace pumice {

#define PUMICE_NORM_KINDS(X) X(rms) X(layer)
#define PUMICE_POOL_KINDS(X) X(mean) X(cls) X(last) X(max) X(mean_sqrt_len) X(weighted_mean)
#define PUMICE_SCAN_RULES(X) X(ssd) X(delta)
#define PUMICE_ROUTE_SCORES(X) X(softmax) X(sigmoid)

#define PUMICE_LISTED(name) name,
enum class Activation : std::uint8_t {
#define PUMICE_ACTIVATION(name) name,
#include "core/activations.def"
#undef PUMICE_ACTIVATION
};
enum class NormKind : std::uint8_t { PUMICE_NORM_KINDS(PUMICE_LISTED) };
enum class PoolKind : std::uint8_t { PUMICE_POOL_KINDS(PUMICE_LISTED) };
enum class ScanRule : std::uint8_t { PUMICE_SCAN_RULES(PUMICE_LISTED) };
enum class RouteScore : std::uint8_t { PUMICE_ROUTE_SCORES(PUMICE_LISTED) };
#undef PUMICE_LISTED

inline constexpr std::int32_t kPageTokens = 32;  // number of positions in a cache page
// The largest key_dim and value_dim of Attend. All dimensions from 1 to these numbers are supported; multiples of 16 are fast. In latent
// attention, keys have 64 columns more than values, so kMaxKeyDim is larger.
inline constexpr int kMaxKeyDim = 576, kMaxValueDim = 512;
inline constexpr int kMaxStateDim = 1024;  // the largest key_dim and value_dim of Scan
inline constexpr int kMaxExperts = 4096;   // the largest number of experts in a mixture
inline constexpr int kMaxChosen = 64;      // the largest number of experts that Route chooses for a row
inline constexpr int kMaxTaps = 64;        // the largest width of Conv

}  // namespace pumice
