// GpuCaches is the part of a device's memory that is kept from run to run. It has the pages of a model's caches, and the states of the
// model's recurrent operations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"
#include "vulkan/slabs.h"

namespace pumice::vulkan {

// A page has two planes (slabs.h) for each cache: one for the cache's keys, and one for its values.
constexpr std::size_t keys_plane(CacheId cache) { return 2 * static_cast<std::size_t>(cache); }
constexpr std::size_t values_plane(CacheId cache) { return keys_plane(cache) + 1; }
// A state has one plane for each StateId. In a plane, the numbers of the state lie without gaps: matrix after matrix, row after row.
constexpr std::size_t state_plane(StateId state) { return static_cast<std::size_t>(state); }

// page_planes() returns the number of bytes that a page has in each plane, and state_planes() the number of bytes that a state has in each
// plane. Both throw unsupported_model if a shape is not valid.
std::vector<std::uint64_t> page_planes(std::span<const CacheShape> shapes, KvFormat format);
std::vector<std::uint64_t> state_planes(std::span<const StateShape> shapes);

class GpuCaches final : public CacheStore {
 public:
  GpuCaches(std::shared_ptr<Device> device, const Program& program, KvFormat format);

  // The page pool calls these functions, but never two at the same time, as Slabs requires.
  void reserve(std::int32_t pages) override { pages_.reserve(pages); }
  void copy_page(std::int32_t from, std::int32_t to) override { pages_.copy(from, to); }
  void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) override {
    pages_.read(pages, out, stride);
  }
  void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) override {
    pages_.write(pages, in, stride);
  }
  std::uint64_t page_bytes() const override { return pages_.unit_bytes(); }

  void reserve_states(std::int32_t states) override { states_.reserve(states); }
  void read_state(std::int32_t state, std::uint8_t* out) override { states_.read({&state, 1}, out, 0); }
  void write_state(std::int32_t state, const std::uint8_t* in) override { states_.write({&state, 1}, in, 0); }
  std::uint64_t state_bytes() const override { return states_.unit_bytes(); }

  const Slabs& pages() const { return pages_; }
  const Slabs& states() const { return states_; }
  std::uint64_t id() const { return id_; }  // a number that no other GpuCaches of this process has
  KvFormat format() const { return format_; }
  const std::vector<CacheShape>& shapes() const { return shapes_; }
  const std::vector<StateShape>& state_shapes() const { return state_shapes_; }

 private:
  const std::vector<CacheShape> shapes_;
  const std::vector<StateShape> state_shapes_;
  const KvFormat format_;
  Slabs pages_, states_;
  const std::uint64_t id_;
};

}  // namespace pumice::vulkan
