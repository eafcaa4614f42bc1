// Backend is the interface to a device that runs programs. The CPU, Vulkan and the tests' reference backend implement it. engine/ uses
// devices only through this interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/cancel.h"
#include "core/error.h"
#include "core/kv_format.h"
#include "core/program.h"

namespace pumice {

struct MatrixShape;   // defined in core/program_check.h
struct WeightShapes;  // defined in core/program_check.h

// The types of devices. An entry of type `none` in a list of devices is not a device. Its DeviceInfo::why_not is the reason why devices
// could not be listed.
enum class DeviceType : std::uint8_t { none, cpu, integrated, discrete, virtual_gpu, software, other };
inline constexpr std::string_view kDeviceTypes[] = {"none", "cpu", "integrated", "discrete", "virtual", "software", "other"};
constexpr std::string_view name(DeviceType type) { return kDeviceTypes[static_cast<std::size_t>(type)]; }

struct DeviceInfo {
  std::string id;    // for example "cpu" or "vulkan:0"
  std::string name;  // for example "AMD EPYC (2 threads, avx2)"
  DeviceType type = DeviceType::none;
  std::string driver;                               // the name of the driver; on the CPU the instruction set and the BLAS library
  std::uint64_t memory_total = 0, memory_free = 0;  // in bytes
  std::vector<std::string> features;
  std::vector<std::string> notes;  // names of features that were switched off, with reasons; filled only when the device is opened
  // If `usable` is false, opening the device throws an error with the text `why_not` and the kind `why_kind`.
  bool usable = true;
  std::string why_not;
  ErrorKind why_kind = ErrorKind::device_not_found;
};

enum class Compute : std::uint8_t { automatic, float32 };  // float32 forbids a backend to quantize activations

// A callback that Backend::pack() calls with the number of bytes loaded so far. The total is not an argument, because the code that passes
// the callback knows it. Calls never overlap in time.
using Progress = std::function<void(std::uint64_t bytes)>;

// A device's packed weights. They are packed once and shared by all programs of a model.
class DeviceWeights {
 public:
  virtual ~DeviceWeights() = default;
  virtual std::uint64_t bytes() const = 0;
  // expert_hits() counts how often a run needed an expert that was in memory. expert_reads() counts how often a run had to read an expert
  // from the file. Both return 0 if all experts are always in memory.
  virtual std::uint64_t expert_hits() const { return 0; }
  virtual std::uint64_t expert_reads() const { return 0; }
};

// The data that sequences keep on one device between runs, which are pages and states. A page has the keys and values of kPageTokens
// positions in all caches of a program. A state has the values that the program's Conv and Scan operations carry from one position of a
// sequence to the next. Pages and states have numbers from 0 on, and engine/ assigns them to sequences. Nothing is cleared, so a page or a
// state holds garbage until it is written. A state is written as a whole and then never changed, so several sequences can continue from it.
class CacheStore {
 public:
  virtual ~CacheStore() = default;
  // Allocates storage for all page ids below `pages`. The storage never shrinks. Throws an out-of-memory Error if it cannot be allocated.
  virtual void reserve(std::int32_t pages) = 0;
  virtual void copy_page(std::int32_t from, std::int32_t to) = 0;  // copies page `from` to page `to` in all caches
  // read_pages() copies pages to `out`, and write_pages() copies pages from `in`. In these buffers, page pages[i] begins at byte i * stride
  // and takes page_bytes() bytes. The layout inside a page depends on the kind of device.
  virtual void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) = 0;
  virtual void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) = 0;
  virtual std::uint64_t page_bytes() const = 0;  // bytes of one page in all caches

  // reserve_states(), read_state(), write_state() and state_bytes() do for states what reserve(), read_pages(), write_pages() and
  // page_bytes() do for pages. If the program has no states, state_bytes() is 0.
  virtual void reserve_states(std::int32_t states) = 0;
  virtual void read_state(std::int32_t state, std::uint8_t* out) = 0;
  virtual void write_state(std::int32_t state, const std::uint8_t* in) = 0;
  virtual std::uint64_t state_bytes() const = 0;
};

// The workers that compute a run. `team` means all workers of the device. `solo` means one worker, so that several runs can go on at the
// same time. A Workspace, the scratch memory of one run, is made for a Crew (Backend::make_workspace).
enum class Crew : std::uint8_t { team, solo };
class Workspace {
 public:
  virtual ~Workspace() = default;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // Runs the program on one batch. Thread-safe, but concurrent runs must not share a workspace. Throws Error. If `cancel` is set during the
  // run, throws ErrorKind::cancelled, and the cache entries that the run has written are invalid. The results for a row have the same bits
  // whatever other rows the batch has.
  virtual void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const = 0;
};

// The memory that a program needs on a device. pumice.plan() prints these numbers, and they are compared with the free memory before
// anything is allocated.
struct Cost {
  std::uint64_t weights = 0;  // bytes of the program's packed weights
  std::uint64_t page = 0;     // bytes of one page in all caches of the program
  std::uint64_t state = 0;    // bytes of one state of the program
  std::uint64_t scratch = 0;  // bytes of one workspace for as many rows as cost() was called with; includes the input and the output
  // `experts` is the number of bytes of the program's packed experts, which `weights` includes. `experts_least` is the smallest argument
  // `expert_bytes` that pack() accepts. Both numbers are 0 if the backend always keeps all experts in memory.
  std::uint64_t experts = 0, experts_least = 0;
};

inline constexpr std::uint64_t kAllExperts = UINT64_MAX;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  // Packs the matrices that `programs` use, or all matrices if `programs` is empty. How a matrix is packed may depend on these programs,
  // but prepare() also accepts other programs that use the same matrices. Uses all threads, checks `cancel` and calls `progress`. If the
  // experts take more than `expert_bytes` bytes, the backend keeps at most `expert_bytes` bytes of experts in memory, and runs read the
  // other experts from the file when a router chooses them. A backend whose Cost::experts is 0 accepts only kAllExperts.
  virtual std::shared_ptr<const DeviceWeights> pack(const Weights& weights, std::span<const Program* const> programs,
                                                    const Progress& progress, const Cancel& cancel,
                                                    std::uint64_t expert_bytes = kAllExperts) = 0;
  // Makes an empty store for the caches and the states of `program`. `format` is the format of keys and values.
  virtual std::unique_ptr<CacheStore> make_caches(const Program& program, KvFormat format) = 0;
  // Does the part of prepare() that does not need the values of the weights. The caller calls foresee() while pack() runs, so that a GPU
  // compiles its pipelines while the weights are uploaded. A CPU does nothing. The caller ignores errors, because prepare() fails with the
  // same errors.
  virtual void foresee(const Program& program, const Weights& weights, Compute compute, const Cancel& cancel) = 0;
  // Makes a program ready to run. A GPU compiles the pipelines that foresee() has not compiled, which takes seconds, and checks `cancel`
  // between pipelines.
  virtual std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                                    const Cancel& cancel = Cancel()) = 0;
  virtual std::unique_ptr<Workspace> make_workspace(Crew crew) = 0;
  virtual Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const = 0;
  // Returns the largest k for which the device finds the k largest logits of a row (with Top) faster than the host finds them in the whole
  // row. Returns 0 if the device is never faster. `head` is the matrix whose products are the logits, and `step_bytes` is the number of
  // bytes of weights that a step of the model reads. A GPU is faster because only the results of Top, and not the whole row, cross the bus
  // to the host. A CPU is faster only if Top need not read the whole matrix `head` (cpu/sketch.h).
  virtual std::int32_t ranks(const MatrixShape& head, std::uint64_t step_bytes) const {
    static_cast<void>(head), static_cast<void>(step_bytes);
    return 0;
  }
  // Returns how many runs of Crew::solo can go on at the same time. This is the number of threads on a CPU, and 1 on a GPU.
  virtual int workers() const = 0;
  // Returns the number of token rows that keep the device busy in one batch. A larger batch takes more memory and time and is no faster per
  // row.
  virtual std::int64_t batch_rows() const = 0;
  // Runs job(index, worker) for each index in [0, jobs), with at most workers() jobs at the same time. If jobs throw, rethrows the first
  // exception after all workers have stopped. The device runs nothing else during the call. Callers therefore keep each call short (tens of
  // milliseconds) and let other work run between calls.
  virtual void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) = 0;
};

}  // namespace pumice
