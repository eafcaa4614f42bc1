// The interface of a device that runs programs. CPU, Vulkan and the tests' reference backend implement it; engine/ uses nothing else of
// them.
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

struct WeightShapes;  // core/program_check.h

// none: no device, in the place of a list that could not be made.
enum class DeviceType : std::uint8_t { none, cpu, integrated, discrete, virtual_gpu, software, other };
inline constexpr std::string_view kDeviceTypes[] = {"none", "cpu", "integrated", "discrete", "virtual", "software", "other"};
constexpr std::string_view name(DeviceType type) { return kDeviceTypes[static_cast<std::size_t>(type)]; }

struct DeviceInfo {
  std::string id;    // "cpu", "vulkan:0"
  std::string name;  // "AMD EPYC (2 threads, avx2)"
  DeviceType type = DeviceType::none;
  std::string driver;                               // CPU: instruction set and BLAS
  std::uint64_t memory_total = 0, memory_free = 0;  // bytes
  std::vector<std::string> features;
  std::vector<std::string> notes;  // opened devices: what was switched off, and why
  bool usable = true;
  std::string why_not;
  ErrorKind why_kind = ErrorKind::device_not_found;  // kind of the error that opening it raises
};

enum class Compute : std::uint8_t { automatic, float32 };  // float32: activations are never quantized

// Reports the progress of a load: bytes done so far; the caller knows the total. Called from one thread at a time.
using Progress = std::function<void(std::uint64_t bytes)>;

// A device's packed weights. They are packed once and shared by all programs of a model.
class DeviceWeights {
 public:
  virtual ~DeviceWeights() = default;
  virtual std::uint64_t bytes() const = 0;
};

// The pages of all caches of a model on one device. Page ids run from 0 to the number of reserved pages; engine/ assigns pages to
// sequences. Pages are not cleared: a page holds garbage until Store writes it.
class CacheStore {
 public:
  virtual ~CacheStore() = default;
  virtual void reserve(std::int32_t pages) = 0;  // makes storage for ids below `pages`; it never shrinks. Throws out_of_memory
  virtual void copy_page(std::int32_t from, std::int32_t to) = 0;  // in all caches
  // Copies the bytes of pages to `out`, or from `in`: page i at i * stride, page_bytes() bytes each. The layout is this kind of device's
  // own.
  virtual void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) = 0;
  virtual void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) = 0;
  virtual std::uint64_t page_bytes() const = 0;  // bytes of one page in all caches
};

// The scratch memory of one run. Crew::team: the run uses the whole device. Crew::solo: the run uses one worker, so that several runs can
// go on at the same time.
enum class Crew : std::uint8_t { team, solo };
class Workspace {
 public:
  virtual ~Workspace() = default;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // Thread-safe; each concurrent run needs its own workspace. Throws Error; ErrorKind::cancelled when `cancel` is set during the run (rows
  // that were written to caches are then invalid). Rows are independent: a row's bits do not depend on its batch.
  virtual void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const = 0;
};

// The memory that a program takes on a device. plan() prints it, and it is checked before anything is allocated.
struct Cost {
  std::uint64_t weights = 0;  // bytes of the program's packed weights
  std::uint64_t page = 0;     // bytes of one page in all caches of the program
  std::uint64_t scratch = 0;  // bytes of one workspace for `rows` rows, input and output included
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  // Packs the matrices that these programs read, or all without programs (all threads, cancel checked, `progress` called). Other programs
  // that read the same matrices may be prepared, too: the programs given only say what a matrix is multiplied by.
  virtual std::shared_ptr<const DeviceWeights> pack(const Weights& weights, std::span<const Program* const> programs,
                                                    const Progress& progress, const Cancel& cancel) = 0;
  virtual std::unique_ptr<CacheStore> make_caches(std::span<const CacheShape> shapes, KvFormat format) = 0;
  // Called while pack() runs: makes what prepare() of this program needs and what does not depend on the weights' bytes. A GPU compiles its
  // pipelines while weights are uploaded; a CPU does nothing. Errors are ignored here, because prepare() raises them again.
  virtual void foresee(const Program& program, const Weights& weights, Compute compute, const Cancel& cancel) = 0;
  // Makes a program ready to run. A GPU compiles the pipelines that foresee() has not; that takes seconds, and `cancel` is checked between
  // pipelines.
  virtual std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                                    const Cancel& cancel = Cancel()) = 0;
  virtual std::unique_ptr<Workspace> make_workspace(Crew crew) = 0;
  virtual Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const = 0;
  // true: results come back over a bus, so that copying a row of logits costs more than choosing from it on the device (Top).
  virtual bool reads_back_slowly() const { return false; }
  virtual int workers() const = 0;              // solo runs that can go on at the same time: the CPU's threads, 1 for a GPU
  virtual std::int64_t batch_rows() const = 0;  // token rows of one batch that keep the device busy; more rows only take memory and time
  // Runs job(index, worker) for index in [0, jobs), up to workers() at once; the first exception is thrown after all have stopped.
  // The call occupies the device: callers keep it short (tens of milliseconds), so that other calls get their turn.
  virtual void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) = 0;
};

}  // namespace pumice
