// A device that runs programs. CPU, Vulkan and the tests' reference backend implement this; engine/ sees nothing else of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "core/error.h"
#include "core/kv_format.h"
#include "core/program.h"

namespace pumice {

struct DeviceInfo {
  std::string id;      // "cpu", "vulkan:0"
  std::string name;    // "AMD EPYC (2 threads, avx2)"
  std::string type;    // "cpu", "integrated", "discrete", "software"
  std::string driver;  // CPU: instruction set and BLAS
  std::uint64_t memory_total = 0, memory_free = 0;  // bytes
  std::vector<std::string> features;
  std::vector<std::string> notes;  // of an opened one: what was switched off, and why
  bool usable = true;
  std::string why_not;
  ErrorKind why_kind = ErrorKind::device_not_found;  // of the error for whoever asks for it all the same
};

enum class Compute : std::uint8_t { automatic, float32 };  // float32: activations are never quantized

// Progress of a load: bytes done so far, of a total that the caller knows. Called from one thread at a time.
using Progress = std::function<void(std::uint64_t bytes)>;

// Weights as a device keeps them: packed once, shared by all programs of a model.
class DeviceWeights {
 public:
  virtual ~DeviceWeights() = default;
  virtual std::uint64_t bytes() const = 0;
};

// The pages of all caches of a model on one device. Page ids run from 0 to the number asked for; engine/ says who owns which.
// Pages are not cleared: a page holds garbage until Store writes it.
class CacheStore {
 public:
  virtual ~CacheStore() = default;
  virtual void reserve(std::int32_t pages) = 0;                        // storage for ids below `pages`; grows only. Throws out_of_memory
  virtual void copy_page(std::int32_t from, std::int32_t to) = 0;      // all caches
  // The bytes of pages as they are kept here, which say nothing to another kind of device: page i to (from) i * stride, page_bytes() each.
  virtual void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) = 0;
  virtual void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) = 0;
  virtual std::uint64_t page_bytes() const = 0;                        // of one page in all caches
};

// Scratch of one run. `Crew::team`: a run uses the whole device. `Crew::solo`: it stays on one worker, so that several go on at once.
enum class Crew : std::uint8_t { team, solo };
class Workspace {
 public:
  virtual ~Workspace() = default;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // Thread-safe; each concurrent run has its own workspace. Throws Error; cancelled when `cancel` is set meanwhile (the
  // rows written to caches by then are void). Rows are independent: a row's bits do not depend on its batch.
  virtual void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const = 0;
};

// What a program costs on a device: printed by plan(), checked before anything is allocated.
struct Cost {
  std::uint64_t weights = 0;           // bytes of the program's own weights as packed here
  std::uint64_t page = 0;              // bytes of one cache page in all its caches
  std::uint64_t scratch = 0;           // bytes of one workspace at `rows` rows, with what goes in and comes out
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  // Packs every matrix (all threads, cancel checked, `progress` called). Only matrices with used[i] true are taken (empty: all).
  virtual std::shared_ptr<const DeviceWeights> pack(const Weights& weights, const std::vector<bool>& used, const Progress& progress,
                                                       const Cancel& cancel) = 0;
  virtual std::unique_ptr<CacheStore> make_caches(std::span<const CacheShape> shapes, KvFormat format) = 0;
  // Called beside weights(): what prepare() of this program will want made and does not need the weights' bytes (a GPU compiles its
  // pipelines while they are uploaded; a CPU has nothing to make). An error here is none: prepare() meets it again.
  virtual void foresee(const Program& program, const Weights& weights, Compute compute, const Cancel& cancel) = 0;
  // A GPU compiles what foresee() has not: seconds, with `cancel` seen from pipeline to pipeline.
  virtual std::shared_ptr<const Executable> prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute compute,
                                                    const Cancel& cancel = Cancel()) = 0;
  virtual std::unique_ptr<Workspace> make_workspace(Crew crew) = 0;
  virtual Cost cost(const Program& program, const Weights& weights, KvFormat format, std::int64_t rows) const = 0;
  // Results come back over a bus: a row of logits costs more than choosing from it there (Top).
  virtual bool reads_back_slowly() const { return false; }
  virtual int workers() const = 0;  // how many solo runs go on at once: threads of the CPU, 1 of a GPU
  virtual std::int64_t batch_rows() const = 0;  // token rows of one batch that keep the device busy; more only take memory and time
  // Runs job(index, worker) for index in [0, jobs), up to workers() at once; the first exception is thrown after all have stopped.
  // Takes the device for the time of the call: callers keep calls short (tens of milliseconds), so that others get their turn.
  virtual void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) = 0;
};

}  // namespace pumice
