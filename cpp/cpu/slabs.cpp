#include "cpu/slabs.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace pumice::cpu {
namespace {

constexpr std::uint64_t kSlabBytes = 16 << 20;
constexpr std::size_t kSlabs = 1 << 16;

}  // namespace

Slabs::Slabs(std::uint64_t unit_bytes, std::string what, std::string unit)
    : unit_bytes_(unit_bytes), what_(std::move(what)), unit_(std::move(unit)) {
  while (bits_ < 14 && (unit_bytes_ << (bits_ + 1)) <= kSlabBytes) ++bits_;
  if (unit_bytes_ > 0) slabs_.resize(kSlabs);
}

void Slabs::reserve(std::int32_t units) {
  const std::lock_guard lock(lock_);
  if (unit_bytes_ == 0) count_.store(std::max(units, count()), std::memory_order_release);
  const std::int32_t per_slab = 1 << bits_;
  while (count() < units) {
    const auto slab = static_cast<std::size_t>(count() >> bits_);
    if (slab >= kSlabs) {
      fail(ErrorKind::out_of_memory, what_, ": ", units, " ", unit_, " of ", unit_bytes_, " bytes are more than the ",
           kSlabs * static_cast<std::size_t>(per_slab), " that this version keeps; lower the cache budget");
    }
    const std::uint64_t bytes = unit_bytes_ << bits_;
    check_memory(bytes, what_);
    slabs_[slab] = Buffer(bytes, what_);
    count_.store(count() + std::min(per_slab, INT32_MAX - count()), std::memory_order_release);
  }
}

void Slabs::require_unit(std::int32_t id) const { require(id >= 0 && id < count(), what_, ": ", unit_, " ", id, " of ", count()); }

}  // namespace pumice::cpu
