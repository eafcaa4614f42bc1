// The device that the tests use: vulkan:0, or the one whose index is in the environment variable PUMICE_TEST_VULKAN.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>

#include "core/error.h"
#include "vulkan/device.h"

namespace pumice::vulkan {

inline std::size_t chosen_index() {
  const char* index = std::getenv("PUMICE_TEST_VULKAN");
  return index != nullptr ? std::strtoul(index, nullptr, 10) : 0;
}
inline const PhysicalDevice& physical() { return Instance::get().devices().at(chosen_index()); }

// Returns the message of the error that `work` throws. The test fails if there is none, or if it is of another kind.
inline std::string message_of(ErrorKind kind, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace pumice::vulkan
