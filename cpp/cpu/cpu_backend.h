// The CPU backend.
#pragma once

#include <memory>

#include "core/backend.h"

namespace pumice::cpu {

// If `threads` is 0, the backend has os::default_threads() threads.
std::shared_ptr<Backend> make_backend(int threads);

}  // namespace pumice::cpu
