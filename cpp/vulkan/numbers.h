// number() converts an enum value of core/ to the number that shaders use for it (shaders/params.h). If an enum value has no case here, the
// code does not compile. Activations are not listed here, because cmake/generate_formats.py numbers them by their order in
// core/activations.def.
#pragma once

#include "core/backend.h"
#include "shaders/params.h"

namespace pumice::vulkan {

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wswitch"

constexpr params::uint number(NormKind kind) {
  switch (kind) {
    case NormKind::rms:
      return params::kNormRms;
    case NormKind::layer:
      return params::kNormLayer;
  }
  return UINT32_MAX;
}

constexpr params::uint number(PoolKind kind) {
  switch (kind) {
    case PoolKind::mean:
      return params::kPoolMean;
    case PoolKind::cls:
      return params::kPoolCls;
    case PoolKind::last:
      return params::kPoolLast;
    case PoolKind::max:
      return params::kPoolMax;
    case PoolKind::mean_sqrt_len:
      return params::kPoolMeanSqrtLen;
    case PoolKind::weighted_mean:
      return params::kPoolWeightedMean;
  }
  return UINT32_MAX;
}

constexpr params::uint number(ScanRule rule) {
  switch (rule) {
    case ScanRule::ssd:
      return params::kScanSsd;
    case ScanRule::delta:
      return params::kScanDelta;
  }
  return UINT32_MAX;
}

constexpr params::uint number(RouteScore score) {
  switch (score) {
    case RouteScore::softmax:
      return params::kRouteSoftmax;
    case RouteScore::sigmoid:
      return params::kRouteSigmoid;
  }
  return UINT32_MAX;
}

constexpr params::uint number(KvFormat format) {
  switch (format) {
    case KvFormat::f16:
      return params::kKvF16;
    case KvFormat::f32:
      return params::kKvF32;
    case KvFormat::q8_0:
      return params::kKvQ8;
  }
  return UINT32_MAX;
}

#pragma GCC diagnostic pop

static_assert(params::kRouteExperts == kMaxExperts && params::kRouteChosen == kMaxChosen);

}  // namespace pumice::vulkan
