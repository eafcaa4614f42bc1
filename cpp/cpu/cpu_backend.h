// The CPU backend.
#pragma once

#include <memory>

#include "core/backend.h"

namespace pumice::cpu {

// If `threads` is 0, the backend has default_threads() threads.
std::shared_ptr<Backend> make_backend(int threads);
int default_threads();  // physical cores that affinity and cgroup quota allow, at least 1

}  // namespace pumice::cpu
