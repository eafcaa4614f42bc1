// With PUMICE_VULKAN_VALIDATION=1, a message of the validation layer (wrong calls, missing barriers, objects that are not freed) fails the
// test during which it came. This holds for all tests of this program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "vulkan/chosen_device.h"
#include "vulkan/device.h"
#include "vulkan/tiny.h"

namespace pumice::vulkan {
namespace {

class NoMessages final : public testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const testing::TestInfo&) override { report(); }
  void OnTestSuiteEnd(const testing::TestSuite&) override { report(); }  // the device that the suite shares is closed by then

 private:
  void report() {
    const std::vector<std::string> all = validation_messages();
    for (; told_ < all.size(); ++told_) ADD_FAILURE() << all[told_];
  }
  std::size_t told_ = 0;
};
// At the end of a test, GoogleTest calls its listeners in reverse order. So these failures are added before GoogleTest's own printer prints
// the result.
[[maybe_unused]] const bool listens = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new NoMessages);
  return true;
}();

// ---------------------------------------------------------------- that there would be messages
class Commands {
 public:
  explicit Commands(const Device& device) : device_(device) {
    const DeviceApi& api = device.api();
    const VkCommandPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                       .queueFamilyIndex = device.physical().queue_family};
    device.check(api.vkCreateCommandPool(device.handle(), &pool, nullptr, &pool_), "vkCreateCommandPool");
    const VkCommandBufferAllocateInfo info{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                           .commandPool = pool_,
                                           .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                           .commandBufferCount = 1};
    device.check(api.vkAllocateCommandBuffers(device.handle(), &info, &commands_), "vkAllocateCommandBuffers");
    const VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    device.check(api.vkBeginCommandBuffer(commands_, &begin), "vkBeginCommandBuffer");
  }
  ~Commands() {
    device_.api().vkEndCommandBuffer(commands_);
    device_.api().vkDestroyCommandPool(device_.handle(), pool_, nullptr);
  }
  VkCommandBuffer get() const { return commands_; }

 private:
  const Device& device_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
};

std::size_t messages_with(const std::string& text) {
  std::size_t count = 0;
  for (const std::string& message : validation_messages()) count += message.find(text) != std::string::npos;
  return count;
}

// Returns true if the validation layer reports nothing for a correct copy, one message for two copies to the same bytes without a barrier,
// and one message for a copy beyond the end of a buffer.
bool each_fault_is_told_once() {
  const auto device = Device::open(physical());
  const auto from = device->buffer(1024, Place::device, "a test"), to = device->buffer(1024, Place::device, "a test");
  const auto copy = [&](std::uint64_t to_offset, int times) {
    const Commands commands(*device);
    const VkBufferCopy region{.srcOffset = 0, .dstOffset = to_offset, .size = 512};
    for (int i = 0; i < times; ++i) device->api().vkCmdCopyBuffer(commands.get(), from->handle(), to->handle(), 1, &region);
  };
  copy(0, 1);
  const bool quiet = validation_messages().empty();
  copy(0, 2);
  const bool missing_barrier = messages_with("WRITE_AFTER_WRITE") == 1 && validation_messages().size() == 1;
  copy(768, 1);
  const bool wrong_call = messages_with("VUID-vkCmdCopyBuffer") == 1;
  for (const std::string& message : validation_messages()) std::cerr << message << '\n';
  return quiet && missing_barrier && wrong_call;
}

TEST(ValidationDeathTest, SeesWrongCallsAndMissingBarriers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // EXPECT_EXIT runs in a child process, so these intended messages do not fail a test here.
  const tiny::Environment on("PUMICE_VULKAN_VALIDATION", "1");
  EXPECT_EXIT(::_exit(each_fault_is_told_once() ? 0 : 1), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace pumice::vulkan
