#include "vulkan/recorder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "core/checked.h"

namespace pumice::vulkan {
namespace {

constexpr VkPipelineStageFlags kStages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
constexpr VkAccessFlags kReads = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT;
constexpr VkAccessFlags kWrites = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;

using Clock = std::chrono::steady_clock;

}  // namespace

bool Recording::Range::overlaps(const Range& other, bool columns) const {
  if (buffer != other.buffer || begin >= other.end || other.begin >= end) return false;
  const bool apart = columns && slot >= 0 && slot == other.slot && width > 0 && other.width > 0 &&
                     (col + width <= other.col || other.col + other.width <= col);
  return !apart;
}

Recording::Recording(Device& device, std::vector<Command> commands, bool timed)
    : device_(device), timed_(timed), left_(std::move(commands)) {
  device_.check_alive();
  try {
    make_pools();
  } catch (...) {
    release();
    throw;
  }
}

Recording::~Recording() { release(); }

void Recording::release() noexcept {
  if (Instance::forked()) return;
  while (left()) wait_a_little();
  const DeviceApi& api = device_.api();
  for (VkFence fence : fences_) {
    if (fence != VK_NULL_HANDLE) api.vkDestroyFence(device_.handle(), fence, nullptr);
  }
  if (queries_ != VK_NULL_HANDLE) api.vkDestroyQueryPool(device_.handle(), queries_, nullptr);
  if (sets_ != VK_NULL_HANDLE) api.vkDestroyDescriptorPool(device_.handle(), sets_, nullptr);
  if (commands_ != VK_NULL_HANDLE) api.vkDestroyCommandPool(device_.handle(), commands_, nullptr);
}

void Recording::make_pools() {
  const DeviceApi& api = device_.api();
  std::uint32_t sets = 0, buffers = 0;
  for (const Command& command : left_) {
    if (const auto* dispatch = std::get_if<Dispatch>(&command)) {
      ++sets;
      buffers += dispatch->pipeline->bindings();
    }
  }
  const VkCommandPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                     .queueFamilyIndex = device_.physical().queue_family};
  device_.check(api.vkCreateCommandPool(device_.handle(), &pool, nullptr, &commands_), "vkCreateCommandPool");
  const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, std::max(1u, buffers)};
  const VkDescriptorPoolCreateInfo set_pool{
      .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = std::max(1u, sets), .poolSizeCount = 1, .pPoolSizes = &size};
  device_.check(api.vkCreateDescriptorPool(device_.handle(), &set_pool, nullptr, &sets_), "vkCreateDescriptorPool");
  for (VkFence& fence : fences_) {
    const VkFenceCreateInfo info{.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    device_.check(api.vkCreateFence(device_.handle(), &info, nullptr, &fence), "vkCreateFence");
  }
  if (timed_) {
    const VkQueryPoolCreateInfo info{.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                     .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                     .queryCount = 2 * static_cast<std::uint32_t>(std::max<std::size_t>(1, left_.size()))};
    device_.check(api.vkCreateQueryPool(device_.handle(), &info, nullptr, &queries_), "vkCreateQueryPool");
  }
}

// ---------------------------------------------------------------- recording
void Recording::record_piece() {
  begin_piece();
  while (next_ < left_.size() && std::visit([&](const auto& command) { return record(command); }, left_[next_])) ++next_;
  complete_ = next_ == left_.size();
  end_piece(complete_);
  if (complete_) left_.clear();
}

void Recording::begin_piece() {
  const DeviceApi& api = device_.api();
  Piece piece;
  const VkCommandBufferAllocateInfo info{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                         .commandPool = commands_,
                                         .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                         .commandBufferCount = 1};
  device_.check(api.vkAllocateCommandBuffers(device_.handle(), &info, &piece.commands), "vkAllocateCommandBuffers");
  const VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  device_.check(api.vkBeginCommandBuffer(piece.commands, &begin), "vkBeginCommandBuffer");
  pieces_.push_back(piece);
  barrier(kStages, kReads | kWrites);  // waits for the reads and writes of earlier submissions
}

void Recording::end_piece(bool last) {
  if (last) barrier(VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
  device_.check(device_.api().vkEndCommandBuffer(pieces_.back().commands), "vkEndCommandBuffer");
}

void Recording::barrier(VkPipelineStageFlags to_stage, VkAccessFlags to_access) {
  const VkMemoryBarrier memory{.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = kWrites, .dstAccessMask = to_access};
  device_.api().vkCmdPipelineBarrier(pieces_.back().commands, kStages, to_stage, 0, 1, &memory, 0, nullptr, 0, nullptr);
  ++barriers_;
  read_.clear();
  written_.clear();
}

// Adds a barrier if the next command reads a range that was written since the last barrier, or writes a range that was read or written
// since then.
void Recording::order(std::span<const Range> reads, std::span<const Range> writes) {
  const auto meet = [](std::span<const Range> ours, const std::vector<Range>& theirs, bool columns) {
    return std::any_of(ours.begin(), ours.end(), [&](const Range& a) {
      return std::any_of(theirs.begin(), theirs.end(), [&](const Range& b) { return a.overlaps(b, columns); });
    });
  };
  // Dispatches that write different columns of a slot (for example parts of one product) may run at the same time. A dispatch that reads a
  // slot always waits for dispatches that write the slot, even if they write other columns. Otherwise the validation layer, which knows
  // nothing of columns, would report an error. The wait costs little, because programs rarely read other columns than those just written.
  if (meet(reads, written_, false) || meet(writes, written_, true) || meet(writes, read_, false)) barrier(kStages, kReads | kWrites);
  read_.insert(read_.end(), reads.begin(), reads.end());
  written_.insert(written_.end(), writes.begin(), writes.end());
}

bool Recording::record(const Copy& copy) {
  if (copy.regions.empty()) return true;
  std::vector<Range> reads, writes;
  double bytes = 0;
  // The regions lie close together, so for barriers they count as one range.
  std::uint64_t from = UINT64_MAX, from_end = 0, to = UINT64_MAX, to_end = 0;
  for (const VkBufferCopy& region : copy.regions) {
    from = std::min<std::uint64_t>(from, region.srcOffset), from_end = std::max<std::uint64_t>(from_end, region.srcOffset + region.size);
    to = std::min<std::uint64_t>(to, region.dstOffset), to_end = std::max<std::uint64_t>(to_end, region.dstOffset + region.size);
    bytes += 2.0 * static_cast<double>(region.size);
  }
  reads.push_back({copy.from, from, from_end, -1, 0, 0});
  writes.push_back({copy.to, to, to_end, -1, 0, 0});
  order(reads, writes);
  begin_time(timed_);
  device_.api().vkCmdCopyBuffer(pieces_.back().commands, copy.from->handle(), copy.to->handle(),
                                static_cast<std::uint32_t>(copy.regions.size()), copy.regions.data());
  end_time(timed_, {"copy", 0, bytes, 0});
  pieces_.back().work += device_.work(0, bytes);
  return true;
}

void Recording::describe(const Dispatch& dispatch) {
  const DeviceApi& api = device_.api();
  const ComputePipeline& pipeline = *dispatch.pipeline;
  require(dispatch.binding_count <= pipeline.bindings() && dispatch.binding_count > 0 && dispatch.push_bytes >= 8, "a dispatch of ",
          dispatch.what, " binds ", dispatch.binding_count, " of ", pipeline.bindings(), " buffers");
  const VkDescriptorSetLayout layout = pipeline.set_layout();
  const VkDescriptorSetAllocateInfo info{
      .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, .descriptorPool = sets_, .descriptorSetCount = 1, .pSetLayouts = &layout};
  device_.check(api.vkAllocateDescriptorSets(device_.handle(), &info, &set_), "vkAllocateDescriptorSets");
  VkDescriptorBufferInfo buffers[8];
  VkWriteDescriptorSet writes[8];
  reads_.clear();
  writes_.clear();
  for (std::uint32_t b = 0; b < pipeline.bindings(); ++b) {
    // Every binding needs a buffer. A binding that this dispatch does not use gets the dispatch's first buffer.
    const bool given = b < dispatch.binding_count && dispatch.bindings[b].buffer != nullptr;
    const Binding& binding = dispatch.bindings[given ? b : 0];
    if (binding.bytes > device_.limits().range || binding.offset % 256 != 0 || binding.offset + binding.bytes > binding.buffer->bytes()) {
      fail(ErrorKind::device, dispatch.what, ": binding ", b, " of ", binding.bytes, " bytes at ", binding.offset, " of ",
           binding.buffer->bytes(), " does not fit the device's range of ", device_.limits().range);
    }
    buffers[b] = {.buffer = binding.buffer->handle(), .offset = binding.offset, .range = binding.bytes};
    writes[b] = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                 .dstSet = set_,
                 .dstBinding = b,
                 .descriptorCount = 1,
                 .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                 .pBufferInfo = &buffers[b]};
    if (given) {
      (binding.written ? writes_ : reads_)
          .push_back({binding.buffer, binding.offset, binding.offset + binding.bytes, binding.slot, binding.col, binding.width});
    }
  }
  api.vkUpdateDescriptorSets(device_.handle(), pipeline.bindings(), writes, 0, nullptr);
}

// Records workgroups until the time budget of the submission is used up. The next submission continues with the remaining workgroups, so a
// long dispatch is divided between submissions.
bool Recording::record(const Dispatch& dispatch) {
  if (dispatch.groups == 0) return true;
  const ComputePipeline& pipeline = *dispatch.pipeline;
  if (set_ == VK_NULL_HANDLE) describe(dispatch);
  Piece& piece = pieces_.back();
  const double budget = static_cast<double>(device_.limits().submit_ms) * 1e-3, pace = device_.pace();
  const double work = device_.work(dispatch.flops, dispatch.bytes);
  const auto cuts = static_cast<std::uint64_t>(std::clamp(std::ceil(work * pace / budget), 1.0, static_cast<double>(dispatch.groups)));
  const std::uint64_t grid = device_.limits().groups_x * device_.limits().groups_y;
  const std::uint64_t step = std::min((dispatch.groups + cuts - 1) / cuts, grid);
  for (bool bound = false; group_ < dispatch.groups; bound = true) {
    const std::uint64_t count = std::min(step, dispatch.groups - group_);
    const double part = work * static_cast<double>(count) / static_cast<double>(dispatch.groups);
    if (piece.work > 0 && (piece.work + part) * pace > budget) return false;
    // The parts of a divided dispatch get barriers between them, although they are independent. Without barriers the validation layer would
    // report that several dispatches write the same range. The barriers cost little, because there are few parts.
    order(reads_, writes_);
    if (!bound) {
      device_.api().vkCmdBindPipeline(piece.commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.handle());
      device_.api().vkCmdBindDescriptorSets(piece.commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.layout(), 0, 1, &set_, 0, nullptr);
      piece.compiles |= pipeline.runs_first();
    }
    groups(dispatch, group_, count);
    piece.work += part;
    group_ += count;
  }
  group_ = 0;
  set_ = VK_NULL_HANDLE;
  return true;
}

void Recording::groups(const Dispatch& dispatch, std::uint64_t first, std::uint64_t count) {
  const DeviceApi& api = device_.api();
  const VkCommandBuffer commands = pieces_.back().commands;
  auto push = dispatch.push;
  push[0] = static_cast<std::uint32_t>(first);
  push[1] = static_cast<std::uint32_t>(first + count);
  api.vkCmdPushConstants(commands, dispatch.pipeline->layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, dispatch.push_bytes, push.data());
  const std::uint64_t x = std::min(count, device_.limits().groups_x), y = (count + x - 1) / x;
  const double share = static_cast<double>(count) / static_cast<double>(dispatch.groups);
  begin_time(timed_ && first == 0);
  api.vkCmdDispatch(commands, static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y), 1);
  end_time(timed_ && first == 0, {dispatch.what, dispatch.flops * share, dispatch.bytes * share, 0});
  ++dispatches_;
}

// begin_time() and end_time() write the two timestamps of a command: the first when the previous command ends, the second when this command
// ends.
void Recording::begin_time(bool timed) {
  if (!timed) return;
  const auto query = static_cast<std::uint32_t>(2 * timings_.size());
  device_.api().vkCmdResetQueryPool(pieces_.back().commands, queries_, query, 2);
  device_.api().vkCmdWriteTimestamp(pieces_.back().commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, query);
}
void Recording::end_time(bool timed, const Timing& timing) {
  if (!timed) return;
  const auto query = static_cast<std::uint32_t>(2 * timings_.size() + 1);
  device_.api().vkCmdWriteTimestamp(pieces_.back().commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, query);
  timings_.push_back(timing);
}

// ---------------------------------------------------------------- running
// A submission cannot be cancelled once it is sent. So only as many submissions are in flight as keep the device busy: up to kMostInFlight
// submissions of 10 ms. Submissions take longer than 10 ms if the machine is busy, or if the device has not been measured yet. Then fewer
// are in flight, but at least one.
void Recording::run(const Cancel& cancel) {
  device_.check_alive();
  cancel.check();
  const DeviceApi& api = device_.api();
  const double most = static_cast<double>(device_.limits().submit_ms) * 1e-3 * static_cast<double>(kMostInFlight);
  std::size_t submitted = 0, finished = 0;
  double in_flight = 0;  // estimated work of the submissions in flight
  Clock::time_point begun[kMostInFlight], last_end = Clock::now();
  const auto finish_one = [&] {
    if (!wait(finished, cancel)) return false;
    Piece& piece = pieces_[finished];
    const Clock::time_point now = Clock::now(), begin = std::max(begun[finished % kMostInFlight], last_end);
    if (!std::exchange(piece.compiles, false)) device_.measured(piece.work, std::chrono::duration<double>(now - begin).count());
    in_flight -= piece.work;
    last_end = now;
    ++finished;
    return true;
  };
  const auto fits = [&] {
    return submitted == finished ||
           (submitted < finished + kMostInFlight && (in_flight + pieces_[submitted].work) * device_.pace() <= most);
  };
  try {
    while (finished < pieces_.size() || !complete_) {
      if (!cancel.requested()) {
        if (submitted == pieces_.size() && !complete_) record_piece();
        if (submitted < pieces_.size() && fits()) {
          VkFence& fence = fences_[submitted % kMostInFlight];
          device_.check(api.vkResetFences(device_.handle(), 1, &fence), "vkResetFences");
          begun[submitted % kMostInFlight] = Clock::now();
          device_.submit(pieces_[submitted].commands, fence);
          in_flight += pieces_[submitted].work;
          ++submitted;
          continue;
        }
      }
      if (finished == submitted || !finish_one()) break;  // both conditions are true only after a Cancel
    }
  } catch (...) {
    wait_idle();  // so that no buffer is freed while the device still uses it
    throw;
  }
  left_piece_ = finished;
  left_end_ = submitted;
  cancel.check();
}

bool Recording::is_done(std::size_t piece, std::chrono::nanoseconds patience) {
  const VkResult result = device_.api().vkWaitForFences(device_.handle(), 1, &fences_[piece % kMostInFlight], VK_TRUE,
                                                        static_cast<std::uint64_t>(patience.count()));
  device_.check(result, "vkWaitForFences");
  return result == VK_SUCCESS;
}

bool Recording::wait(std::size_t piece, const Cancel& cancel) {
  for (std::chrono::milliseconds waited{0}; waited < kPatience;) {
    if (is_done(piece, kLook)) return true;
    if (cancel.requested()) waited += kLook;
  }
  return false;
}

void Recording::run_briefly() {
  device_.check_alive();
  record_piece();
  require(complete_, "a recording of copies has more than one submission");
  try {
    device_.submit(pieces_[0].commands, fences_[0]);
    left_end_ = is_done(0, kPatience) ? 0 : 1;
  } catch (...) {
    wait_idle();
    throw;
  }
}

void Recording::wait_a_little() noexcept {
  try {
    if (left_piece_ < left_end_) is_done(left_piece_, kLook);
  } catch (...) {  // left(), which is called next, handles the error
  }
}

bool Recording::left() noexcept {
  try {
    while (left_piece_ < left_end_ && is_done(left_piece_, std::chrono::nanoseconds{0})) ++left_piece_;
  } catch (...) {  // the submission may still run, so this waits until the device is idle
    wait_idle();
    left_piece_ = left_end_;
  }
  return left_piece_ < left_end_;
}

void Recording::wait_idle() noexcept {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const VkResult result = device_.wait_idle();
    if (result == VK_SUCCESS) return;
    if (result == VK_ERROR_DEVICE_LOST) break;  // a lost device executes nothing any more
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  device_.mark_lost();
}

std::vector<Timing> Recording::timings() const {
  std::vector<Timing> result = timings_;
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::uint64_t ticks[2] = {};
    device_.check(device_.api().vkGetQueryPoolResults(device_.handle(), queries_, static_cast<std::uint32_t>(2 * i), 2, sizeof ticks, ticks,
                                                      sizeof(std::uint64_t), VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
                  "vkGetQueryPoolResults");
    result[i].seconds = static_cast<double>(ticks[1] - ticks[0]) * static_cast<double>(device_.physical().timestamp_ns) * 1e-9;
  }
  return result;
}

}  // namespace pumice::vulkan
