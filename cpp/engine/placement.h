// Which layer runs on which device, and how much memory that takes. It is computed from metadata alone, printed by plan() and summary(),
// and checked before a load.
//
// A GPU gets the last N layers and the head, so that hidden rows cross between devices once. The embedding lies with layer 0.
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
  std::uint64_t weights = 0;  // bytes as packed on the device; a head that is the embedding adds nothing
  std::uint64_t kv = 0;       // bytes of the keys and values of one sequence of n_ctx positions
  std::string formats;        // "Q4_K, Q6_K"
  std::string why;            // why it is not on the GPU, where there is one
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
  std::vector<PlacedDevice> devices;  // those that take part
  std::vector<StagePlan> stages;
  std::vector<PlacementRow> rows;
  std::uint64_t weights = 0, scratch = 0, kv_budget = 0, kv_page = 0, memory_free = 0;  // bytes, all devices together
  std::int64_t n_ctx = 0;
  // An encoder, or a decoder whose options or files say how its rows are pooled: scratch is planned for batches of encode().
  bool encodes_first = false;
  std::vector<std::string> notes;  // what was capped or did not fit, and which setting changes it
  // Why results differ from the original model's: each text begins with "lacks" or "has".
  std::vector<std::string> incomplete;
  std::string fallback;          // why device="auto" uses no GPU although there is one
  std::optional<Error> problem;  // the model does not fit: out_of_memory or out_of_device_memory, with the numbers. load() throws it
};

// A GPU gets layers only as far as keys and values of so many positions fit beside them, unless n_ctx or kv_budget say otherwise.
inline constexpr std::int64_t kPlannedPositions = 8192;

// Throws invalid_argument for an n_ctx or gpu_layers that the model cannot have.
Placement place(const model::ModelPrograms& programs, const Devices& devices, const LoadOptions& options);
// Shares the layers evenly over the given devices, in order. Tests split models by it.
Placement place_evenly(const model::ModelPrograms& programs, const std::vector<std::shared_ptr<Backend>>& backends,
                       const LoadOptions& options);

}  // namespace pumice::engine
