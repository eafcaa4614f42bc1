// The formats of keys and values in caches. The kernels of every instruction set include this header, so it includes no classes of the
// standard library (core/kinds.h has the reason).
#pragma once

#include <cstdint>

namespace pumice {

#define PUMICE_KV_FORMATS(X) X(f16) X(f32) X(q8_0)

#define PUMICE_LISTED(name) name,
enum class KvFormat : std::uint8_t { PUMICE_KV_FORMATS(PUMICE_LISTED) };
#undef PUMICE_LISTED
#define PUMICE_QUOTED(name) #name,
inline constexpr const char* kKvFormats[] = {PUMICE_KV_FORMATS(PUMICE_QUOTED)};
#undef PUMICE_QUOTED

}  // namespace pumice
