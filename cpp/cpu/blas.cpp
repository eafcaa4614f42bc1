#include "cpu/blas.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "os/libraries.h"
#include "os/limits.h"

namespace pumice::cpu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libpumiceopenblas.so";
constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;  // constants of the CBLAS interface (Blackford et al. 2002)

// Returns the path of pumice's own copy of OpenBLAS, which is in the folder of the module or program that contains this code. dladdr() may
// return a program's name as a relative path, so the absolute path of the program is tried as well.
fs::path own_copy() {
  Dl_info info{};
  std::error_code ignored;
  fs::path self;
  if (dladdr(reinterpret_cast<const void*>(&own_copy), &info) != 0 && info.dli_fname != nullptr) self = info.dli_fname;
  if (!self.is_absolute()) self = fs::absolute(self, ignored);
  const fs::path beside = self.parent_path() / kFile;
  if (fs::exists(beside, ignored)) return beside;
  const fs::path program = os::program().parent_path() / kFile;
  return fs::exists(program, ignored) ? program : beside;
}

// While this object exists, the environment variables of BLAS libraries ask for one thread. OpenBLAS reads its variable and starts its
// threads when it is opened; a later call of set_num_threads() would only leave these threads idle. Accelerate reads its variable at its
// first product.
class OneThread {
 public:
  OneThread() {
    for (Variable& variable : variables_) {
      if (const char* value = getenv(variable.name)) variable.before = value;
      setenv(variable.name, "1", 1);
    }
  }
  ~OneThread() {
    for (const Variable& variable : variables_) {
      if (variable.before) {
        setenv(variable.name, variable.before->c_str(), 1);
      } else {
        unsetenv(variable.name);
      }
    }
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  struct Variable {
    const char* name;
    std::optional<std::string> before;
  };
  Variable variables_[2] = {{"OPENBLAS_NUM_THREADS", {}}, {"VECLIB_MAXIMUM_THREADS", {}}};
};

template <class Function>
Function symbol(void* library, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* found = dlsym(library, name)) return reinterpret_cast<Function>(found);
  }
  return nullptr;
}

std::vector<float>& scratch(std::vector<float>& held, std::int64_t floats) {
  try {
    if (held.size() < static_cast<std::size_t>(floats)) held.resize(static_cast<std::size_t>(floats));
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::out_of_memory, "a float32 matrix product needs ", floats * 4, " bytes of scratch");
  }
  return held;
}

}  // namespace

constexpr std::uint64_t kBuffer = std::uint64_t{64} << 20;  // size of a buffer that OpenBLAS 0.3.34 maps on x86-64
constexpr std::uint64_t kMargin = std::uint64_t{32} << 20;  // address space that must remain free for other allocations

class Blas::Buffer {
 public:
  explicit Buffer(Buffers& all) : all_(all) {
    const int inside = ++all.inside;
    for (int admitted = all.admitted; inside > admitted && !first_;) {
      const std::uint64_t needed = static_cast<std::uint64_t>(++all.coming) * kBuffer + kMargin;
      const auto left = os::address_space_left();
      if (left && *left < needed) {
        --all.coming;
        --all.inside;
        fail(ErrorKind::out_of_memory, "OpenBLAS needs ", needed >> 20,
             " MiB of address space for one more thread, and the limit (ulimit -v) leaves ", *left >> 20,
             " MiB: raise it, take fewer threads=, or set PUMICE_BLAS=none");
      }
      first_ = all.admitted.compare_exchange_strong(admitted, admitted + 1);
      if (!first_) --all.coming;
    }
  }
  ~Buffer() {
    --all_.inside;
    if (first_) --all_.coming;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 private:
  Buffers& all_;
  bool first_ = false;
};

// While this object exists, Accelerate computes the calling thread's products on that thread alone. The destructor restores the thread's
// former setting, because the thread may belong to the program that calls pumice.
class Blas::OneThreadHere {
 public:
  explicit OneThreadHere(const Blas& blas) : set_(blas.get_threading_ != nullptr ? blas.set_threading_ : nullptr) {
    if (set_ == nullptr) return;
    before_ = blas.get_threading_();
    set_(1);
  }
  ~OneThreadHere() {
    if (set_ != nullptr) set_(before_);
  }
  OneThreadHere(const OneThreadHere&) = delete;
  OneThreadHere& operator=(const OneThreadHere&) = delete;

 private:
  int (*set_)(unsigned);
  unsigned before_ = 0;
};

// Computes one panel and writes it transposed, as out[cols][height]. Equal rows must get equal bits at every position in a panel;
// computes() tests this for a height. OpenBLAS 0.3.34 with its Haswell kernels allows panels of 16 rows in this layout, but only 11 rows
// with out[height][cols].
void Blas::panel(std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w, std::int64_t w_stride,
                 std::int64_t height, float* out) const {
  const Buffer buffer(*buffers_);
  const OneThreadHere one(*this);
  sgemm_(kRowMajor, kNoTrans, kTrans, static_cast<int>(cols), static_cast<int>(height), static_cast<int>(k), 1.0f, w,
         static_cast<int>(w_stride), x, static_cast<int>(x_stride), 0.0f, out, static_cast<int>(height));
}

// Returns whether products are correct, and whether equal rows get equal bits at every position in a panel of this height. A library has
// different kernels for different processors, so this test runs on the machine that uses the library (0.3 ms).
bool Blas::computes(std::int64_t height) const {
  struct Shape {
    std::int64_t cols, k;
  };
  constexpr Shape kShapes[] = {{1, 33}, {49, 100}, {208, 33}, {400, 385}, {33, 1030}};
  std::uint32_t state = 1;
  const auto next = [&] { return static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f; };
  for (const auto [cols, k] : kShapes) {
    std::vector<float> w(static_cast<std::size_t>(cols * k)), x(static_cast<std::size_t>(height * k)),
        out(static_cast<std::size_t>(cols * height));
    for (float& value : w) value = next();
    for (std::int64_t i = 0; i < k; ++i) x[static_cast<std::size_t>(i)] = next();
    for (std::int64_t r = 1; r < height; ++r)
      std::memcpy(&x[static_cast<std::size_t>(r * k)], x.data(), static_cast<std::size_t>(k) * sizeof(float));
    panel(cols, k, x.data(), k, w.data(), k, height, out.data());
    for (std::int64_t c = 0; c < cols; ++c) {
      const float* row = &out[static_cast<std::size_t>(c * height)];
      double truth = 0.0;
      for (std::int64_t i = 0; i < k; ++i) truth += double{w[static_cast<std::size_t>(c * k + i)]} * x[static_cast<std::size_t>(i)];
      if (!(std::abs(row[0] - truth) <= 1e-4)) return false;
      for (std::int64_t r = 1; r < height; ++r) {
        if (std::memcmp(&row[r], row, sizeof(float)) != 0) return false;
      }
    }
  }
  return true;
}

void Blas::sgemm_nt(std::int64_t rows, std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w,
                    std::int64_t w_stride, float* out, std::int64_t out_stride) const {
  for (const std::int64_t n : {cols, k, x_stride, w_stride}) {
    if (n < 0 || n > std::numeric_limits<int>::max()) {
      fail(ErrorKind::invalid_argument, "float32 matrix product of ", rows, " x ", cols, " x ", k, ", strides ", x_stride, " and ",
           w_stride, ": BLAS takes numbers up to ", std::numeric_limits<int>::max());
    }
  }
  if (rows <= 0 || cols == 0) return;
  const std::int64_t height = panel_rows_;
  thread_local std::vector<float> held_out, held_x;
  float* turned = scratch(held_out, cols * height).data();
  for (std::int64_t first = 0; first < rows; first += height) {
    const std::int64_t count = std::min(height, rows - first);
    const float* from = x + first * x_stride;
    std::int64_t from_stride = x_stride;
    if (count < height) {
      float* filled = scratch(held_x, height * k).data();
      for (std::int64_t r = 0; r < count; ++r)
        std::memcpy(filled + r * k, from + r * x_stride, static_cast<std::size_t>(k) * sizeof(float));
      std::memset(filled + count * k, 0, static_cast<std::size_t>((height - count) * k) * sizeof(float));
      from = filled;
      from_stride = k;
    }
    panel(cols, k, from, from_stride, w, w_stride, height, turned);
    for (std::int64_t c = 0; c < cols; ++c) {
      for (std::int64_t r = 0; r < count; ++r) out[(first + r) * out_stride + c] = turned[c * height + r];
    }
  }
}

struct OpenedBlas {
  std::optional<Blas> blas;
  std::string why_not;

  OpenedBlas() {
    const char* named = getenv("PUMICE_BLAS");
    if (named != nullptr && std::strcmp(named, "none") == 0) {
      why_not = "PUMICE_BLAS=none";
      return;
    }
    std::error_code ignored;
    const auto system = os::system_blas();
    const fs::path path = named != nullptr && *named != '\0' ? fs::absolute(named, ignored) : system ? fs::path(system->path) : own_copy();
    const OneThread one;
    // With these flags, symbols of another OpenBLAS that the process has loaded globally do not replace the library's own symbols.
    void* library = dlopen(path.c_str(), os::open_alone_flags());
    if (library == nullptr) {
      const char* reason = dlerror();
      why_not = str("cannot open ", path.string(), ": ", reason != nullptr ? reason : "no reason given");
      return;
    }
    Blas opened;
    opened.path_ = path.string();
    opened.sgemm_ = symbol<Blas::Sgemm>(library, {"scipy_cblas_sgemm", "cblas_sgemm"});
    if (opened.sgemm_ == nullptr) {
      why_not = str(path.string(), " has neither scipy_cblas_sgemm nor cblas_sgemm");
      return;
    }
    if (auto* set = symbol<void (*)(int)>(library, {"scipy_openblas_set_num_threads", "openblas_set_num_threads"})) set(1);
    opened.set_threading_ = symbol<int (*)(unsigned)>(library, {"BLASSetThreading"});
    opened.get_threading_ = symbol<unsigned (*)()>(library, {"BLASGetThreading"});
    if (auto* config = symbol<const char* (*)()>(library, {"scipy_openblas_get_config", "openblas_get_config"})) opened.config_ = config();
    if (const auto left = os::address_space_left(); left && *left < kBuffer + kMargin) {
      why_not = str("the limit of address space (ulimit -v) leaves ", *left >> 20, " MiB; OpenBLAS needs ", (kBuffer + kMargin) >> 20);
      return;
    }
    for (const std::int64_t height : {64, 32, 16, 8, 4, 1}) {
      if (!opened.computes(height)) continue;
      opened.panel_rows_ = height;
      blas = std::move(opened);
      return;
    }
    why_not = str(path.string(), ": its cblas_sgemm gives wrong products (does it take 64-bit integers?)");
  }
};

namespace {
const OpenedBlas& opened() {
  static const auto& once = *new OpenedBlas;  // never destroyed, because threads may still use the library while the process ends
  return once;
}
}  // namespace

const Blas* blas() { return opened().blas ? &*opened().blas : nullptr; }
const std::string& blas_why_not() { return opened().why_not; }

const char* blas_name() {
  const auto system = os::system_blas();
  return system ? system->name : "OpenBLAS";
}

void sgemm_nt(std::int64_t rows, std::int64_t cols, std::int64_t k, const float* x, std::int64_t x_stride, const float* w,
              std::int64_t w_stride, float* out, std::int64_t out_stride) {
  const Blas* library = blas();
  if (library == nullptr)
    fail(ErrorKind::device, "float32 matrix products by ", blas_name(), " were asked for, but there is none: ", blas_why_not());
  library->sgemm_nt(rows, cols, k, x, x_stride, w, w_stride, out, out_stride);
}

}  // namespace pumice::cpu
