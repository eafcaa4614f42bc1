// Backend is the interface of a device that runs programs. The CPU, Vulkan and the tests' reference backend implement it. engine/ uses
// devices through this interface only.
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

// DeviceType::none stands for no device: an entry of this type takes the place of a device list that could not be made.
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
  std::vector<std::string> notes;  // for opened devices: what was switched off, and why
  bool usable = true;
  std::string why_not;
  ErrorKind why_kind = ErrorKind::device_not_found;  // kind of the error that opening it raises
};

enum class Compute : std::uint8_t { automatic, float32 };  // float32: activations are never quantized

// Reports the progress of a load as the number of bytes done so far; the caller knows the total. Calls never overlap.
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
  // Makes storage for page ids below `pages`. The storage never shrinks. Throws out_of_memory.
  virtual void reserve(std::int32_t pages) = 0;
  virtual void copy_page(std::int32_t from, std::int32_t to) = 0;  // copies the page in all caches
  // read_pages copies pages to `out`; write_pages copies them back from `in`. The page with id pages[i] lies at byte i * stride and takes
  // page_bytes() bytes. The layout inside a page depends on the kind of device.
  virtual void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) = 0;
  virtual void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) = 0;
  virtual std::uint64_t page_bytes() const = 0;  // bytes of one page in all caches
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
  // Thread-safe, but each concurrent run needs its own workspace. Throws Error, with ErrorKind::cancelled when `cancel` is set during the
  // run; the cache entries that this run has written are then invalid. A row's bits do not depend on the other rows of the batch.
  virtual void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const = 0;
};

// The memory that a program needs on a device. plan() prints it, and it is checked before anything is allocated.
struct Cost {
  std::uint64_t weights = 0;  // bytes of the program's packed weights
  std::uint64_t page = 0;     // bytes of one page in all caches of the program
  std::uint64_t scratch = 0;  // bytes of one workspace for `rows` rows, input and output included
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  // Packs the matrices that these programs multiply or look up, or all matrices when `programs` is empty. Uses all threads, checks `cancel`
  // and calls `progress`. The list only says what each matrix is multiplied by, so prepare() also accepts other programs that use the same
  // matrices.
  virtual std::shared_ptr<const DeviceWeights> pack(const Weights& weights, std::span<const Program* const> programs,
                                                    const Progress& progress, const Cancel& cancel) = 0;
  virtual std::unique_ptr<CacheStore> make_caches(std::span<const CacheShape> shapes, KvFormat format) = 0;
  // Called while pack() runs. Makes those things for prepare() of this program that do not depend on the weights' bytes: a GPU compiles its
  // pipelines while weights are uploaded, and a CPU does nothing. Errors are ignored here, because prepare() raises them again.
  virtual void foresee(const Program& program, const Weights& weights, Compute compute, const Cancel& cancel) = 0;
  // Makes a program ready to run. A GPU compiles the pipelines that foresee() has not compiled. That takes seconds, and `cancel` is checked
  // between pipelines.
  virtual std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                                    const Cancel& cancel = Cancel()) = 0;
  virtual std::unique_ptr<Workspace> make_workspace(Crew crew) = 0;
  virtual Cost cost(const Program& program, const WeightShapes& weights, KvFormat format, std::int64_t rows) const = 0;
  // Returns true if results come back over a bus. It is then cheaper to choose a token on the device (Top) than to copy its row of logits.
  virtual bool reads_back_slowly() const { return false; }
  virtual int workers() const = 0;  // number of solo runs that can go on at the same time: threads of the CPU, 1 for a GPU
  // Returns the number of token rows in one batch that keeps the device busy. More rows only cost memory and time.
  virtual std::int64_t batch_rows() const = 0;
  // Runs job(index, worker) for each index in [0, jobs), at most workers() calls at once. Throws the first exception after all workers have
  // stopped. The call occupies the device, so callers keep it short (tens of milliseconds) and let other calls run in between.
  virtual void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) = 0;
};

}  // namespace pumice
