#include "vulkan/slabs.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "core/checked.h"

namespace pumice::vulkan {

Slabs::Slabs(std::shared_ptr<Device> device, std::vector<std::uint64_t> plane_bytes, std::string what, std::string unit)
    : device_(std::move(device)), plane_bytes_(std::move(plane_bytes)), what_(std::move(what)), unit_(std::move(unit)) {
  for (const std::uint64_t bytes : plane_bytes_) {
    const auto sum = checked_add(unit_bytes_, bytes);
    if (!sum) fail(ErrorKind::unsupported_model, what_, ": a ", unit_, " has more bytes than can be addressed");
    unit_bytes_ = *sum;
    widest_ = std::max(widest_, bytes);
  }
  const DeviceLimits& limits = device_->limits();
  const std::uint64_t at_once = std::min(limits.range, limits.allocation);
  if (widest_ > at_once) {
    fail(ErrorKind::unsupported_model, device_->physical().name, ": one layer's part of a ", unit_, " (", what_, ") has ", widest_,
         " bytes, which is more than it binds (", limits.range, ") or allocates (", limits.allocation, ") at once");
  }
  most_units_ = static_cast<std::int32_t>(std::min<std::uint64_t>(at_once / std::max<std::uint64_t>(1, widest_), 1 << 30));
}

void Slabs::publish(All& now) {
  ++now.version;
  auto next = std::make_shared<const All>(now);
  const std::lock_guard lock(mutex_);
  all_.swap(next);
}

Slabs::Plane Slabs::plane(std::size_t p, std::int32_t units) const {
  return {device_->buffer(plane_bytes_[p] * static_cast<std::uint64_t>(units), Place::device, what_), 0};
}

void Slabs::reserve(std::int32_t units) {
  if (plane_bytes_.empty()) return;
  device_->check_alive();
  All now = *all();
  if (units <= now.units) return;
  grow(now, units);
  if (units > now.units) add(now, units);
}

// Increases the number of units to `units`, as far as this is possible without a new slab. Joins slabs that earlier calls have added, and
// makes the last slab larger. A slab may not extend beyond a multiple of most_units_, so only slabs between two multiples are joined.
void Slabs::grow(All& now, std::int32_t units) {
  // Maximum time to wait for the end of a run. It is longer than a decode step, so that the wait usually succeeds. It is shorter than a
  // prefill, because the caller holds the lock of the page pool meanwhile.
  constexpr auto kPatience = std::chrono::milliseconds(50);
  std::unique_lock turn(device_->turn(), std::defer_lock);
  for (std::size_t begin = 0; begin < now.slabs.size(); ++begin) {
    const std::int32_t first = now.slabs[begin].first;
    std::size_t end = begin + 1;
    while (end < now.slabs.size() && now.slabs[end].first / most_units_ == first / most_units_) ++end;
    const std::int32_t held = now.slabs[end - 1].first + now.slabs[end - 1].units - first;
    const std::int32_t wanted = end < now.slabs.size() ? held : std::min(most_units_, units - first);
    if (end - begin == 1 && wanted == held) continue;
    const std::uint64_t needed = static_cast<std::uint64_t>(wanted - held) * unit_bytes_ + static_cast<std::uint64_t>(wanted) * widest_;
    if (needed > device_->free_memory()) continue;
    // If has_left() is true, a copy would have to wait for the work of cancelled calls, which may take seconds.
    if ((!turn.owns_lock() && !turn.try_lock_for(kPatience)) || device_->has_left()) return;
    for (std::size_t p = 0; p < plane_bytes_.size(); ++p) {
      if (!move_plane(std::span(now.slabs).subspan(begin, end - begin), p, wanted)) return;
      publish(now);  // frees the plane's old buffers before the next plane is moved
    }
    now.slabs[begin].units = wanted;
    now.slabs.erase(now.slabs.begin() + static_cast<std::ptrdiff_t>(begin) + 1, now.slabs.begin() + static_cast<std::ptrdiff_t>(end));
    now.units += wanted - held;
    publish(now);
  }
}

// Moves one plane of neighbouring slabs to a common buffer for `units` units. In each slab, the plane is then a range of this buffer. The
// slabs themselves are not joined here, so nothing is lost if there is no memory to move the next plane. Returns false if there is no
// memory to move this plane.
bool Slabs::move_plane(std::span<Slab> slabs, std::size_t p, std::int32_t units) const {
  const Plane& begin = slabs[0].planes[p];
  const auto is_there = [&](const Slab& slab) { return slab.planes[p].buffer == begin.buffer; };
  if (begin.buffer->bytes() >= static_cast<std::uint64_t>(units) * plane_bytes_[p] && std::ranges::all_of(slabs, is_there)) return true;
  Plane larger;
  try {
    larger = plane(p, units);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_device_memory) throw;
    return false;
  }
  std::vector<Command> commands;
  const auto offset = [&](const Slab& slab) { return static_cast<std::uint64_t>(slab.first - slabs[0].first) * plane_bytes_[p]; };
  for (const Slab& slab : slabs) {
    const Plane& old = slab.planes[p];
    const VkBufferCopy region{
        .srcOffset = old.offset, .dstOffset = offset(slab), .size = static_cast<std::uint64_t>(slab.units) * plane_bytes_[p]};
    commands.emplace_back(Copy{old.buffer.get(), larger.buffer.get(), {region}});
  }
  Recording(*device_, std::move(commands)).run(Cancel{});
  for (Slab& slab : slabs) slab.planes[p] = {larger.buffer, offset(slab)};
  return true;
}

void Slabs::add(All& now, std::int32_t units) {
  while (now.units < units) {
    Slab slab{now.units, std::min(units - now.units, most_units_ - now.units % most_units_), {}};
    for (std::size_t p = 0; p < plane_bytes_.size(); ++p) slab.planes.push_back(plane(p, slab.units));
    now.units += slab.units;
    now.slabs.push_back(std::move(slab));
  }
  publish(now);
}

const Slabs::Slab& Slabs::slab_of(const All& all, std::int32_t unit) const {
  for (const Slab& slab : all.slabs)
    if (unit >= slab.first && unit < slab.first + slab.units) return slab;
  fail(ErrorKind::invalid_argument, what_, ": ", unit_, " ", unit, " of ", all.units);
}

// If a slab were replaced during this call, the copied unit would be lost. This cannot happen, because only reserve() replaces slabs, and
// the caller does not call reserve() meanwhile.
void Slabs::copy(std::int32_t from, std::int32_t to) {
  if (plane_bytes_.empty()) return;
  device_->check_alive();
  const auto now = all();
  const Slab &source = slab_of(*now, from), &target = slab_of(*now, to);
  if (from == to) return;
  std::vector<Command> commands;
  for (std::size_t p = 0; p < plane_bytes_.size(); ++p) {
    const auto at = [&](const Slab& slab, std::int32_t unit) {
      return slab.planes[p].offset + static_cast<std::uint64_t>(unit - slab.first) * plane_bytes_[p];
    };
    commands.emplace_back(Copy{source.planes[p].buffer.get(),
                               target.planes[p].buffer.get(),
                               {{.srcOffset = at(source, from), .dstOffset = at(target, to), .size = plane_bytes_[p]}}});
  }
  auto recording = std::make_unique<Recording>(*device_, std::move(commands));
  recording->run_briefly();
  if (recording->left()) device_->leave(std::move(recording));  // later runs are safe, because they follow the copy in the device's queue
}

// Collects the parts of the units `ids` (a unit has one part in each plane), divides them into lists, and calls each() for one list after
// another. The parts of a list fit into the staging buffer, which has at most 32 MiB.
void Slabs::through_staging(std::span<const std::int32_t> ids, std::uint64_t stride, Place place,
                            const std::function<void(const Buffer& staging, std::span<const Part> parts)>& each) const {
  if (plane_bytes_.empty() || ids.empty()) return;
  device_->check_alive();
  const auto now = all();
  std::vector<const Slab*> slabs;
  for (const std::int32_t id : ids) slabs.push_back(&slab_of(*now, id));
  const std::uint64_t most = std::max(widest_, std::min<std::uint64_t>(32 << 20, device_->limits().allocation));
  const auto staging = device_->buffer(std::min(most, mul_or_fail<std::uint64_t>(ids.size(), unit_bytes_, "staging memory")), place,
                                       "staging memory of " + what_);
  std::vector<Part> parts;
  std::uint64_t bytes = 0, in_unit = 0;
  for (std::size_t p = 0; p < plane_bytes_.size(); in_unit += plane_bytes_[p++]) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (bytes + plane_bytes_[p] > staging->bytes()) {
        each(*staging, parts);
        parts.clear();
        bytes = 0;
      }
      const Plane& from = slabs[i]->planes[p];
      parts.push_back({from.buffer.get(), from.offset + static_cast<std::uint64_t>(ids[i] - slabs[i]->first) * plane_bytes_[p],
                       plane_bytes_[p], i * stride + in_unit});
      bytes += plane_bytes_[p];
    }
  }
  each(*staging, parts);
}

// Returns commands that copy `parts` to the staging buffer, or back. In the staging buffer the parts lie one after another. Successive
// parts in the same device buffer are regions of one copy.
std::vector<Command> Slabs::copies(const Buffer& staging, std::span<const Part> parts, bool to_staging) {
  std::vector<Command> commands;
  std::uint64_t at = 0;
  for (const Part& part : parts) {
    const Buffer *from = to_staging ? part.buffer : &staging, *to = to_staging ? &staging : part.buffer;
    auto* last = commands.empty() ? nullptr : std::get_if<Copy>(&commands.back());
    if (last == nullptr || last->from != from || last->to != to) last = &std::get<Copy>(commands.emplace_back(Copy{from, to, {}}));
    last->regions.push_back({.srcOffset = to_staging ? part.offset : at, .dstOffset = to_staging ? at : part.offset, .size = part.bytes});
    at += part.bytes;
  }
  return commands;
}

void Slabs::read(std::span<const std::int32_t> ids, std::uint8_t* out, std::uint64_t stride) const {
  through_staging(ids, stride, Place::readback, [&](const Buffer& staging, std::span<const Part> parts) {
    Recording(*device_, copies(staging, parts, true)).run(Cancel{});
    const std::uint8_t* from = staging.mapped();
    for (const Part& part : parts) {
      std::memcpy(out + part.host, from, part.bytes);
      from += part.bytes;
    }
  });
}

void Slabs::write(std::span<const std::int32_t> ids, const std::uint8_t* in, std::uint64_t stride) const {
  through_staging(ids, stride, Place::upload, [&](const Buffer& staging, std::span<const Part> parts) {
    std::uint8_t* to = staging.mapped();
    for (const Part& part : parts) {
      std::memcpy(to, in + part.host, part.bytes);
      to += part.bytes;
    }
    Recording(*device_, copies(staging, parts, false)).run(Cancel{});
  });
}

}  // namespace pumice::vulkan
