// Decides which layer runs on which device, and how much memory that takes. The placement is computed from metadata alone, printed by
// plan() and summary(), and checked before a load.
//
// A GPU gets the last N layers and the head, so that hidden rows are copied between devices only once. The embedding is on the same device
// as layer 0. The experts of a mixture may stay on the CPU while the rest of their layer is on the GPU. This is useful because experts are
// most of the weights and each token needs only a few of them. In each such layer, rows are copied twice between the devices.
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
  // The part of the model, for example "embedding", "layer 0", "experts of layer 0", "head" or "draft head".
  std::string name;
  std::string device;
  std::uint64_t weights = 0;  // bytes of the weights as packed on the device; 0 for a head that shares the embedding's weights
  std::uint64_t kv = 0;       // bytes of the keys and values of one sequence of n_ctx positions
  std::uint64_t state = 0;    // bytes of one state of recurrent layers
  std::string formats;        // formats of the weights, for example "Q4_K, Q6_K"
  std::string why;            // why this part of the model is not on a GPU; empty if it is on a GPU, or if there is no GPU
};

// A stage runs the layers first, ..., last - 1 on one device.
struct StagePlan {
  std::size_t device;  // index into Placement::devices
  std::size_t first, last;
  std::size_t away = 0;  // the experts of the stage's first `away` layers are on Placement::experts_device
};

struct PlacedDevice {
  std::shared_ptr<Backend> backend;
  std::string id, name;
  std::uint64_t weights = 0, scratch = 0, kv_page = 0, state = 0;  // in bytes; kv_page is per cache page, `state` per recurrent state
  std::uint64_t memory_free = 0;                                   // free bytes before the model is loaded
  std::uint64_t expert_bytes = kAllExperts;                        // maximum bytes of experts in memory; kAllExperts: no limit
  bool in_host_memory = true;  // true if the device uses the machine's memory, which other devices may use too
};

struct Placement {
  std::vector<PlacedDevice> devices;  // the devices that run layers or experts of the model
  std::vector<StagePlan> stages;
  // Index in `devices` of the device with the experts that are not on the device of their layer; empty if there are no such experts.
  std::optional<std::size_t> experts_device;
  std::vector<PlacementRow> rows;
  std::uint64_t weights = 0, scratch = 0, kv_budget = 0, kv_page = 0, state = 0, memory_free = 0;  // in bytes, for all devices together
  std::int64_t n_ctx = 0;
  // The largest k for which the head's device finds the k largest logits of a row faster than the host (Backend::ranks). It is at most
  // model::kTopLogits, and 0 if the host is always faster.
  std::int32_t ranks = 0;
  // The side parts (a draft head or an assistant) that the last stage's device runs, as indices in Description::sides. If a side part does
  // not run, `why_no_side` says why.
  std::vector<std::size_t> sides;
  std::string why_no_side;
  // True if scratch must be large enough for the batches of encode(). This is so for an encoder, and for a decoder whose options or files
  // say how its rows are pooled.
  bool encodes_first = false;
  std::vector<std::string> notes;  // texts that say what was limited or did not fit, and which setting changes that
  // The reasons why results differ from those of the original model. Each reason begins with "lacks" or "has".
  std::vector<std::string> incomplete;
  std::string fallback;  // why device="auto" uses no GPU although there is one; otherwise empty
  // The error that load() throws if the model does not fit. Its kind is out_of_memory or out_of_device_memory, and its message says what
  // does not fit.
  std::optional<Error> problem;
};

// Number of positions whose keys and values must fit in a GPU's memory beside the layers that the GPU gets. If n_ctx or kv_budget is given,
// that option determines the number instead.
inline constexpr std::int64_t kPlannedPositions = 8192;

// Computes the placement of a model on `devices`. Throws invalid_argument if the model cannot have the given n_ctx or gpu_layers.
Placement place(const model::ModelPrograms& programs, const Devices& devices, const LoadOptions& options);
// Divides the layers evenly among the given devices, in order. Tests split models with it.
Placement place_evenly(const model::ModelPrograms& programs, const std::vector<std::shared_ptr<Backend>>& backends,
                       const LoadOptions& options);

}  // namespace pumice::engine
