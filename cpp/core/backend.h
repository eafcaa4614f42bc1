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

struct MatrixShape;   // core/program_check.h
struct WeightShapes;  // core/program_check.h

// Type `none` marks an entry that is not a device. Such an entry stands in a list of devices if the devices could not be listed; its
// `why_not` says why.
enum class DeviceType : std::uint8_t { none, cpu, integrated, discrete, virtual_gpu, software, other };
inline constexpr std::string_view kDeviceTypes[] = {"none", "cpu", "integrated", "discrete", "virtual", "software", "other"};
constexpr std::string_view name(DeviceType type) { return kDeviceTypes[static_cast<std::size_t>(type)]; }

struct DeviceInfo {
  std::string id;    // "cpu", "vulkan:0"
  std::string name;  // "AMD EPYC (2 threads, avx2)"
  DeviceType type = DeviceType::none;
  std::string driver;                               // of the CPU: its instruction set and BLAS
  std::uint64_t memory_total = 0, memory_free = 0;  // bytes
  std::vector<std::string> features;
  std::vector<std::string> notes;  // which features were switched off and why; only for opened devices
  // If `usable` is false, opening the device throws an error with the text `why_not` and the kind `why_kind`.
  bool usable = true;
  std::string why_not;
  ErrorKind why_kind = ErrorKind::device_not_found;
};

enum class Compute : std::uint8_t { automatic, float32 };  // float32: activations are never quantized

// Called during a load with the number of bytes done so far. The caller knows the total. Calls never overlap in time.
using Progress = std::function<void(std::uint64_t bytes)>;

// A device's packed weights. They are packed once and shared by all programs of a model.
class DeviceWeights {
 public:
  virtual ~DeviceWeights() = default;
  virtual std::uint64_t bytes() const = 0;
  // The numbers of times that a run needed an expert which was in memory (hits), and which had to be read from the file (reads). Both are 0
  // if all experts are in memory.
  virtual std::uint64_t expert_hits() const { return 0; }
  virtual std::uint64_t expert_reads() const { return 0; }
};

// What sequences leave behind on one device: the pages of all caches of a program, and its states. A page is the storage for kPageTokens
// positions in every cache. A state is what Conv and Scan know of a sequence after some position. Page ids are less than the number of
// reserved pages, and states are numbered in the same way; engine/ assigns both to sequences. Nothing is cleared: a page or a state holds
// garbage until it is written. A state is written as a whole and then never changed, so several sequences may continue from it.
class CacheStore {
 public:
  virtual ~CacheStore() = default;
  // Allocates storage for all page ids below `pages`. The storage never shrinks. Throws an out-of-memory Error if it cannot be allocated.
  virtual void reserve(std::int32_t pages) = 0;
  virtual void copy_page(std::int32_t from, std::int32_t to) = 0;  // copies page `from` to page `to` in all caches
  // read_pages copies pages to `out`; write_pages copies them back from `in`. The page with id pages[i] is at byte i * stride of the buffer
  // and takes page_bytes() bytes. The layout inside a page depends on the kind of device.
  virtual void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) = 0;
  virtual void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) = 0;
  virtual std::uint64_t page_bytes() const = 0;  // bytes of one page in all caches

  // The same for states. A program without states has states of 0 bytes.
  virtual void reserve_states(std::int32_t states) = 0;
  virtual void read_state(std::int32_t state, std::uint8_t* out) = 0;
  virtual void write_state(std::int32_t state, const std::uint8_t* in) = 0;
  virtual std::uint64_t state_bytes() const = 0;
};

// A Workspace is the scratch memory of one run. A run with a Crew::team workspace uses the whole device. A run with a Crew::solo workspace
// uses one worker, so that several runs can go on at the same time.
enum class Crew : std::uint8_t { team, solo };
class Workspace {
 public:
  virtual ~Workspace() = default;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // Runs the program on one batch. Thread-safe, but each concurrent run needs its own workspace. Throws Error. If `cancel` is set during
  // the run, the error has ErrorKind::cancelled, and the cache entries that this run has written are invalid. The results for a row are
  // bit-identical whatever other rows the batch has.
  virtual void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const = 0;
};

// The memory that a program needs on a device. pumice.plan() prints these numbers, and they are checked before anything is allocated.
struct Cost {
  std::uint64_t weights = 0;  // bytes of the program's packed weights
  std::uint64_t page = 0;     // bytes of one page in all caches of the program
  std::uint64_t state = 0;    // bytes of one state of the program
  std::uint64_t scratch = 0;  // bytes of one workspace for the rows that cost() is asked for, input and output included
  // The bytes of the program's packed experts, which are a part of `weights`, and the smallest `expert_bytes` that pack() accepts.
  // Both are 0 if the backend keeps all experts in memory.
  std::uint64_t experts = 0, experts_least = 0;
};

inline constexpr std::uint64_t kAllExperts = UINT64_MAX;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  // Packs the matrices that `programs` multiply by or look up, or all matrices if `programs` is empty. Uses all threads, checks `cancel`
  // and calls `progress`. A backend reads from `programs` which matrices are used and what each is multiplied by. prepare() also accepts
  // other programs that use the same matrices. If the experts of `programs` take more than `expert_bytes`, the backend keeps at most so
  // many bytes of them in memory, and runs read the others from the file when rows choose them. A backend whose Cost::experts is 0 accepts
  // only kAllExperts.
  virtual std::shared_ptr<const DeviceWeights> pack(const Weights& weights, std::span<const Program* const> programs,
                                                    const Progress& progress, const Cancel& cancel,
                                                    std::uint64_t expert_bytes = kAllExperts) = 0;
  // Makes an empty store for the caches and the states of this program. `format` is the format of keys and values.
  virtual std::unique_ptr<CacheStore> make_caches(const Program& program, KvFormat format) = 0;
  // Called while pack() runs. Does the part of prepare() for this program that does not depend on the weights' bytes: a GPU compiles its
  // pipelines while the weights are uploaded; a CPU does nothing. The caller ignores errors, because prepare() runs into the same errors
  // and throws them again.
  virtual void foresee(const Program& program, const Weights& weights, Compute compute, const Cancel& cancel) = 0;
  // Makes a program ready to run. A GPU compiles the pipelines that foresee() has not compiled. This takes seconds; `cancel` is checked
  // between pipelines.
  virtual std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                                    const Cancel& cancel = Cancel()) = 0;
  virtual std::unique_ptr<Workspace> make_workspace(Crew crew) = 0;
  virtual Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const = 0;
  // Returns how many of the largest logits the device finds faster (Top) than the host finds them in whole rows of logits, or 0. `head` is
  // the matrix that gives the logits, and a step of the model reads `step_bytes` bytes of weights. Results of a GPU reach the host over a
  // bus. A CPU finds few logits faster if it need not read the whole head (cpu/sketch.h).
  virtual std::int32_t ranks(const MatrixShape& head, std::uint64_t step_bytes) const {
    static_cast<void>(head), static_cast<void>(step_bytes);
    return 0;
  }
  // Returns how many solo runs can go on at the same time: the number of threads on a CPU, 1 on a GPU.
  virtual int workers() const = 0;
  // Returns the number of token rows in a batch that is large enough to keep the device busy. A larger batch costs memory and time without
  // a gain.
  virtual std::int64_t batch_rows() const = 0;
  // Runs job(index, worker) for each index in [0, jobs), at most workers() calls at once. If jobs throw, rethrows the first exception after
  // all workers have stopped. The device runs nothing else during the call, so callers keep each call short (tens of milliseconds) and let
  // other work run between calls.
  virtual void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) = 0;
};

}  // namespace pumice
