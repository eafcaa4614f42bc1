// Records a list of dispatches and copies in command buffers. The recorder adds the necessary barriers, arranges the workgroups of a
// dispatch in the device's grid, and cuts the work into submissions of about 10 ms. Longer submissions could be ended by the driver's
// watchdog, and Ctrl-C takes effect only between submissions.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/cancel.h"
#include "vulkan/device.h"
#include "vulkan/pipelines.h"

namespace pumice::vulkan {

// A range of a buffer that is bound to a shader. If `slot` is not negative, the range has rows of that slot, and the shader uses only their
// columns [col, col + width). The recorder needs this to leave out barriers between dispatches that write different columns of a slot.
struct Binding {
  const Buffer* buffer = nullptr;
  std::uint64_t offset = 0, bytes = 0;
  bool written = false;
  std::int32_t slot = -1, col = 0, width = 0;
};

// A dispatch of `groups` workgroups. Its push constants begin with first_group and groups (params.h), which the recorder sets.
struct Dispatch {
  const ComputePipeline* pipeline = nullptr;
  std::array<Binding, 8> bindings;
  std::uint32_t binding_count = 0;
  std::array<std::uint32_t, kPushBytes / 4> push{};
  std::uint32_t push_bytes = 0;
  std::uint64_t groups = 0;
  double flops = 0, bytes = 0;  // number of floating point operations, and of bytes read or written, in all groups together
  const char* what = "";        // name in profiles and messages

  template <class Push>
  void set_push(const Push& values) {
    static_assert(sizeof(Push) <= kPushBytes && std::is_trivially_copyable_v<Push>);
    std::memcpy(push.data(), &values, sizeof values);
    push_bytes = sizeof values;
  }
  void bind(const Binding& binding) { bindings[binding_count++] = binding; }
};

struct Copy {
  const Buffer *from = nullptr, *to = nullptr;
  std::vector<VkBufferCopy> regions;
};

using Command = std::variant<Dispatch, Copy>;

struct Timing {
  const char* what;
  double flops, bytes, seconds;
};

class Recording {
 public:
  // The device must outlive this object. If `timed` is true, each command is measured with GPU timestamps (for bench).
  Recording(Device& device, std::vector<Command> commands, bool timed = false);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Submits the work and waits until it is done. The first run records each submission while the device executes earlier ones. The measured
  // times of the earlier submissions decide how much work the next submission gets. After an error or a Cancel, run() must not be called
  // again.
  //
  // A Cancel takes effect between submissions. A submission may take seconds, because the driver compiles a pipeline at its first run
  // (lavapipe) or because the machine is busy. After a Cancel, run() waits at most kPatience for such a submission. If the submission is
  // not done by then, the device still uses the buffers of the commands. Then left() is true, and the recording must be passed to
  // Device::leave().
  void run(const Cancel& cancel);
  // Runs copies for a caller that has no Cancel. Waits at most kPatience for their end, because an earlier submission in the queue may take
  // seconds. If left() is true afterwards, the recording must be passed to Device::leave().
  void run_briefly();
  bool left() noexcept;           // whether the device may still execute submissions that run() or run_briefly() stopped waiting for
  void wait_a_little() noexcept;  // if left() is true, waits up to kLook until one of these submissions is done
  std::size_t submissions() const { return pieces_.size(); }
  std::size_t dispatches() const { return dispatches_; }
  std::size_t barriers() const { return barriers_; }
  std::vector<Timing> timings() const;  // the times of the last run's commands

 private:
  static constexpr std::size_t kMostInFlight = 4;
  static constexpr std::chrono::milliseconds kLook{20};      // interval at which a Cancel is checked
  static constexpr std::chrono::milliseconds kPatience{40};  // how long a cancelled run waits for the submission that is being executed
  struct Piece {                                             // one submission
    VkCommandBuffer commands = VK_NULL_HANDLE;
    double work = 0;        // estimated time in seconds, from Device::work()
    bool compiles = false;  // true if a pipeline runs for the first time in this submission, so that the time may include compiling
  };
  struct Range {
    const Buffer* buffer;
    std::uint64_t begin, end;
    std::int32_t slot, col, width;
    bool overlaps(const Range& other, bool columns) const;  // if `columns` is true, different columns of a slot do not overlap
  };

  void make_pools();
  void record_piece();
  bool record(const Dispatch& dispatch);  // returns false if the rest of the dispatch belongs in the next piece
  bool record(const Copy& copy);
  void describe(const Dispatch& dispatch);
  void begin_piece();
  void end_piece(bool last);
  void order(std::span<const Range> reads, std::span<const Range> writes);
  void barrier(VkPipelineStageFlags to_stage, VkAccessFlags to_access);
  void groups(const Dispatch& dispatch, std::uint64_t first, std::uint64_t count);
  void begin_time(bool timed);
  void end_time(bool timed, const Timing& timing);
  bool is_done(std::size_t piece, std::chrono::nanoseconds patience);  // waits up to `patience` for the end of a submission
  bool wait(std::size_t piece, const Cancel& cancel);  // returns false if the submission was not done within kPatience after a Cancel
  void wait_idle() noexcept;
  void release() noexcept;

  Device& device_;
  const bool timed_;
  // left_[next_] is the first command that is not recorded, or not completely. If it is a dispatch whose first workgroups are recorded,
  // set_ is its descriptor set, and group_ is its first workgroup that is not recorded.
  std::vector<Command> left_;
  std::size_t next_ = 0;
  std::uint64_t group_ = 0;
  VkDescriptorSet set_ = VK_NULL_HANDLE;
  std::vector<Range> reads_, writes_;  // the ranges that the dispatch being recorded reads and writes
  bool complete_ = false;              // true if all commands are recorded
  VkCommandPool commands_ = VK_NULL_HANDLE;
  VkDescriptorPool sets_ = VK_NULL_HANDLE;
  VkQueryPool queries_ = VK_NULL_HANDLE;
  VkFence fences_[kMostInFlight] = {};
  std::vector<Piece> pieces_;
  std::vector<Timing> timings_;
  std::vector<Range> read_, written_;  // the ranges that were read and written since the last barrier
  std::size_t dispatches_ = 0, barriers_ = 0;
  // The submissions [left_piece_, left_end_) may not be done yet, and run() no longer waits for them. left_piece_ is atomic, because
  // wait_a_little() may read it while another thread is in left().
  std::atomic<std::size_t> left_piece_{0};
  std::size_t left_end_ = 0;
};

}  // namespace pumice::vulkan
