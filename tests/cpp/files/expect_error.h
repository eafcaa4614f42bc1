#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace pumice::files::testing {

// Runs `action`, which must throw an Error of kind `kind` whose message contains `text`. Returns the error.
template <class Action>
Error expect_error(ErrorKind kind, const std::string& text, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << "'" << error.what() << "' should contain '" << text << "'";
    return error;
  }
  ADD_FAILURE() << "no error; '" << text << "' was expected";
  return Error(kind, "");
}

}  // namespace pumice::files::testing
