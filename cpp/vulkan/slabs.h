// Device memory for units of equal size. A unit is a page of the caches, or a state. The number of units grows over time.
//
// A unit has a part in each of several planes. For example, the keys of one layer are a plane. An operation uses one plane of all units, so
// the parts of all units in a plane lie one after another. The units are divided into slabs. In a slab, each plane is one range of a buffer
// and is small enough for one binding.
//
// An operation needs one dispatch for each slab, so there should be few slabs. To get more units, reserve() makes the last slab larger by
// replacing its buffers one plane after another. This needs memory for the additional units and for one more plane, but not for two slabs.
// No run may use the slab meanwhile. If memory is short, or if a run does not end soon, reserve() adds a slab instead, and a later call
// joins the two.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "vulkan/recorder.h"

namespace pumice::vulkan {

class Slabs {
 public:
  // One plane of a slab. The parts of the slab's units lie in `buffer` one after another, from byte `offset` on, which is a multiple of
  // 256.
  struct Plane {
    std::shared_ptr<Buffer> buffer;
    std::uint64_t offset = 0;
  };
  struct Slab {
    std::int32_t first = 0, units = 0;  // holds units [first, first + units)
    std::vector<Plane> planes;
  };
  // The slabs at one moment, by ascending unit numbers. While a thread holds Device::turn(), no slab is replaced, but slabs may be added.
  struct All {
    std::vector<Slab> slabs;
    std::int32_t units = 0;     // number of units in all slabs
    std::uint32_t version = 0;  // changes whenever the slabs change
  };

  // plane_bytes[p] is the number of bytes of a unit in plane p, a multiple of 256. `what` ("keys and values") and `unit` ("page") are names
  // for error messages. Throws unsupported_model if one part of a unit is larger than a binding or an allocation of the device may be.
  Slabs(std::shared_ptr<Device> device, std::vector<std::uint64_t> plane_bytes, std::string what, std::string unit);

  // The following functions must be called one at a time, but programs may run meanwhile. None of them waits until a run ends, because the
  // caller holds the lock of the page pool and has no Cancel that could end the wait.
  void reserve(std::int32_t units);               // makes the number of units at least `units`; throws out_of_device_memory
  void copy(std::int32_t from, std::int32_t to);  // copies unit `from` to unit `to`; no run may write either of them meanwhile
  // read() copies the units `ids` to the host's memory, and write() copies them from there. In the host's memory, unit ids[i] begins at
  // byte i * stride and has unit_bytes() bytes. These are its parts of all planes, one after another.
  void read(std::span<const std::int32_t> ids, std::uint8_t* out, std::uint64_t stride) const;
  void write(std::span<const std::int32_t> ids, const std::uint8_t* in, std::uint64_t stride) const;

  std::uint64_t unit_bytes() const { return unit_bytes_; }
  std::uint64_t plane_bytes(std::size_t plane) const { return plane_bytes_[plane]; }
  std::shared_ptr<const All> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  // A unit's part of one plane: its buffer, offset and size on the device, and its offset in the host's memory (`host`).
  struct Part {
    const Buffer* buffer = nullptr;
    std::uint64_t offset = 0, bytes = 0, host = 0;
  };
  void grow(All& now, std::int32_t units);
  bool move_plane(std::span<Slab> slabs, std::size_t p, std::int32_t units) const;
  void add(All& now, std::int32_t units);
  void publish(All& now);
  Plane plane(std::size_t p, std::int32_t units) const;
  const Slab& slab_of(const All& all, std::int32_t unit) const;
  static std::vector<Command> copies(const Buffer& staging, std::span<const Part> parts, bool to_staging);
  void through_staging(std::span<const std::int32_t> ids, std::uint64_t stride, Place place,
                       const std::function<void(const Buffer& staging, std::span<const Part> parts)>& each) const;

  const std::shared_ptr<Device> device_;
  const std::vector<std::uint64_t> plane_bytes_;
  const std::string what_, unit_;
  std::uint64_t unit_bytes_ = 0, widest_ = 0;  // bytes of a unit in all planes together, and in the widest plane
  std::int32_t most_units_ = 0;                // maximum number of units in a slab
  mutable std::mutex mutex_;
  std::shared_ptr<const All> all_ = std::make_shared<All>();
};

}  // namespace pumice::vulkan
