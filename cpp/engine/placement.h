// Decides which layer runs on which device, and how much memory that takes. The placement is computed from metadata alone, printed by
// plan() and summary(), and checked before a load.
//
// A GPU gets the last N layers and the head, so that hidden rows cross between devices only once. The embedding is on the same device as
// layer 0.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/error.h"
#include "engine/devices.h"
#include "engine/load_options.h"
#include "model/model_programs.h"

namespace pumice::engine {

struct PlacementRow {
  std::string name;  // "embedding", "layer 0", ..., "head", "modules", "classifier"
  std::string device;
  std::uint64_t weights = 0;  // bytes as packed on the device; 0 for a head that shares the embedding's weights
  std::uint64_t kv = 0;       // bytes of the keys and values of one sequence of n_ctx positions
  std::string formats;        // "Q4_K, Q6_K"
  std::string why;            // why it is not on the GPU; empty if it is, or if there is no GPU
};

// Layers [first, last) on one device.
struct StagePlan {
  std::size_t device;  // index into Placement::devices
  std::size_t first, last;
};

struct PlacedDevice {
  std::shared_ptr<Backend> backend;
  std::string id, name;
  std::uint64_t weights = 0, scratch = 0, kv_page = 0;  // bytes
  std::uint64_t memory_free = 0;                        // bytes, before the model is loaded
  bool in_host_memory = true;                           // it shares the machine's memory with other devices
};

struct Placement {
  std::vector<PlacedDevice> devices;  // the devices that take part
  std::vector<StagePlan> stages;
  std::vector<PlacementRow> rows;
  std::uint64_t weights = 0, scratch = 0, kv_budget = 0, kv_page = 0, memory_free = 0;  // bytes, all devices together
  std::int64_t n_ctx = 0;
  // True for an encoder, and for a decoder whose options or files say how its rows are pooled. Scratch is then planned for batches of
  // encode().
  bool encodes_first = false;
  std::vector<std::string> notes;  // what was capped or did not fit, and which setting changes it
  // Why results differ from the original model's. Each text begins with "lacks" or "has".
  std::vector<std::string> incomplete;
  std::string fallback;  // why device="auto" uses no GPU although there is one
  // Set if the model does not fit: out_of_memory or out_of_device_memory, with the numbers. load() throws it.
  std::optional<Error> problem;
};

// Unless n_ctx or kv_budget say otherwise, a GPU gets only so many layers that the keys and values of this many positions fit beside them.
inline constexpr std::int64_t kPlannedPositions = 8192;

// Throws invalid_argument for an n_ctx or gpu_layers that the model cannot have.
Placement place(const model::ModelPrograms& programs, const Devices& devices, const LoadOptions& options);
// Shares the layers evenly over the given devices, in order. Tests split models with it.
Placement place_evenly(const model::ModelPrograms& programs, const std::vector<std::shared_ptr<Backend>>& backends,
                       const LoadOptions& options);

}  // namespace pumice::engine
