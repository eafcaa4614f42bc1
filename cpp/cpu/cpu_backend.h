// The CPU backend.
#pragma once

#include <memory>

#include "core/backend.h"

namespace pumice::cpu {

// Makes a CPU backend with `threads` threads, or with os::default_threads() threads if `threads` is 0.
std::shared_ptr<Backend> make_backend(int threads);

}  // namespace pumice::cpu
