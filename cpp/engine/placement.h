// Which layer runs where, and what it costs: computed from metadata alone, printed by plan() and summary(), checked before loading.
//
// With N layers on a GPU, these are the last N, and the head: one border, at which the hidden rows cross once. The embedding lies with
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
  std::uint64_t weights = 0;  // bytes as packed on the device; a tied head costs nothing again
  std::uint64_t kv = 0;       // bytes of the keys and values of one sequence of n_ctx positions
  std::string formats;        // "Q4_K, Q6_K"
  std::string why;            // not on the GPU although there is one: why
};

// Layers [first, last) on one device.
struct StagePlan {
  std::size_t device;  // index into Placement::devices
  std::size_t first, last;
};

struct PlacedDevice {
  std::shared_ptr<Backend> backend;
  std::string id, name;
  std::uint64_t weights = 0, scratch = 0, kv_page = 0, memory_free = 0;  // bytes; free: before the model is there
  bool in_host_memory = true;                                            // what several devices may share
};

struct Placement {
  std::vector<PlacedDevice> devices;  // those that take part
  std::vector<StagePlan> stages;
  std::vector<PlacementRow> rows;
  std::uint64_t weights = 0, scratch = 0, kv_budget = 0, kv_page = 0, memory_free = 0;  // bytes, all devices together
  std::int64_t n_ctx = 0;
  bool encodes_first = false;      // an encoder, or a decoder whose files say how its rows are pooled: its batches are planned for encode()
  std::vector<std::string> notes;  // what was capped or did not fit, and which setting changes it
  // What the file "lacks ..." of the model, or "has ..." that is not run, so that results are not the original's.
  std::vector<std::string> incomplete;
  std::string fallback;          // a GPU is there, and with device="auto" nothing lies on it: why
  std::optional<Error> problem;  // does not fit: out_of_memory or out_of_device_memory, with the numbers. load() throws it
};

// Positions of one sequence whose keys and values have their place on a GPU before layers have, unless n_ctx or kv_budget say otherwise.
inline constexpr std::int64_t kPlannedPositions = 8192;

// Throws invalid_argument for numbers that the model cannot have.
Placement place(const model::ModelPrograms& programs, const Devices& devices, const LoadOptions& options);
// Layers shared evenly over the given devices, in order: how tests split a model.
Placement place_evenly(const model::ModelPrograms& programs, const std::vector<std::shared_ptr<Backend>>& backends,
                       const LoadOptions& options);

}  // namespace pumice::engine
