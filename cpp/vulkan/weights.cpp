#include "vulkan/weights.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <mutex>
#include <system_error>

#include "core/checked.h"
#include "core/finite.h"
#include "vulkan/layout.h"
#include "vulkan/recorder.h"
#include "vulkan/workers.h"

namespace pumice::vulkan {
namespace {

constexpr std::uint64_t kAlignment = 256;          // bindings begin at multiples of 256 bytes
constexpr std::uint64_t kArenaBytes = 1ull << 30;  // maximum number of bytes of an allocation
constexpr std::uint64_t kStagingBytes = 32 << 20;  // bytes of a staging buffer; there are two, and one is filled while the other is copied
constexpr std::int64_t kJobBytes = 1 << 20;        // number of bytes that a thread packs as one job
// Number of bytes per iteration of upload() if the host writes to device memory directly, without staging buffers.
constexpr std::uint64_t kTurnBytes = 64 << 20;

std::uint64_t checked_row_bytes(const MatrixShape& m) {
  const FormatInfo& format = info(m.format);
  if (m.rows < 1 || m.cols < 1 || m.rows > INT32_MAX || m.cols > INT32_MAX || m.cols % format.block != 0) {
    fail(ErrorKind::unsupported_model, "tensor '", m.name, "' (", format.name, ") has ", m.rows, " rows of ", m.cols,
         " weights; needed: 1 to ", INT32_MAX, " of each, and rows of whole blocks of ", format.block);
  }
  if (m.experts < 1 || m.rows % m.experts != 0) {
    fail(ErrorKind::unsupported_model, "tensor '", m.name, "' has ", m.rows, " rows; needed: equally many for each of ", m.experts,
         " experts");
  }
  return static_cast<std::uint64_t>(device_row_words(m.format, m.cols)) * 4;
}

// Assigns each range of bytes a place: an arena, and an offset in it. An arena is a buffer of at most `limit` bytes. When an arena is full,
// the next one is begun.
class Arenas {
 public:
  explicit Arenas(std::uint64_t limit) : limit_(limit) {}
  struct Place {
    std::size_t arena;
    std::uint64_t offset;
  };
  Place take(std::uint64_t bytes) {
    const std::uint64_t aligned = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (sizes_.empty() || sizes_.back() + aligned > limit_) sizes_.push_back(0);
    const Place place{sizes_.size() - 1, sizes_.back()};
    sizes_.back() += aligned;
    return place;
  }
  const std::vector<std::uint64_t>& sizes() const { return sizes_; }

 private:
  const std::uint64_t limit_;
  std::vector<std::uint64_t> sizes_;
};

}  // namespace

std::uint64_t device_bytes(const MatrixShape& matrix) {
  return mul_or_fail<std::uint64_t>(checked_row_bytes(matrix), static_cast<std::uint64_t>(matrix.rows), "weights of a device");
}

GpuWeights::GpuWeights(std::shared_ptr<Device> device, const Weights& weights, const std::vector<bool>& used, const Progress& progress,
                       const Cancel& cancel)
    : device_(std::move(device)) {
  require(used.empty() || used.size() == weights.matrices.size(), "weights: `used` names ", used.size(), " matrices of ",
          weights.matrices.size());
  for (const Vector& vector : weights.vectors) check_finite(vector);
  place(weights, used, true);
  upload(weights, progress, cancel);
}

GpuWeights::GpuWeights(std::shared_ptr<Device> device, const Weights& weights) : device_(std::move(device)) { place(weights, {}, false); }

// Decides where each matrix and vector lies in memory, and then allocates the buffers if `allocate` is true. All sizes are checked before a
// buffer is allocated.
void GpuWeights::place(const Weights& weights, const std::vector<bool>& used, bool allocate) {
  const DeviceLimits& limits = device_->limits();
  const std::uint64_t most = std::min({kArenaBytes, limits.allocation / kAlignment * kAlignment});
  const std::uint64_t piece_bytes = std::min(limits.range, most);
  Arenas arenas(most);
  // The buffer pointers that must be set after the buffers are allocated, each with the index of its arena.
  std::vector<std::pair<std::shared_ptr<Buffer>*, std::size_t>> waiting;
  matrices_.resize(weights.matrices.size());
  vectors_.resize(weights.vectors.size());
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const Matrix& source = weights.matrices[i];
    GpuMatrix& m = matrices_[i];
    m = {source.name, source.format, source.rows, source.cols, 0, source.experts, {}, source.rounding};
    if (!used.empty() && !used[i]) continue;
    const std::uint64_t row_bytes = checked_row_bytes(shape_of(source));
    m.row_words = static_cast<std::int64_t>(row_bytes / 4);
    if (row_bytes > piece_bytes) {
      fail(ErrorKind::unsupported_model, "tensor '", source.name, "' has rows of ", row_bytes, " bytes; ", device_->physical().name,
           " binds at most ", piece_bytes);
    }
    const auto most = static_cast<std::int64_t>(piece_bytes / row_bytes);
    const std::int64_t whole = most / m.rows_each() * m.rows_each();
    for (std::int64_t first = 0; first < m.rows;) {
      RowRange& piece = m.pieces.emplace_back();
      piece.first = first;
      piece.rows = whole > 0 ? std::min(whole, m.rows - first) : std::min(most, m.rows_each() - first % m.rows_each());
      piece.bytes = static_cast<std::uint64_t>(piece.rows) * row_bytes;
      first += piece.rows;
    }
  }
  for (GpuMatrix& m : matrices_) {
    for (RowRange& piece : m.pieces) {
      const Arenas::Place at = arenas.take(piece.bytes);
      piece.offset = at.offset;
      waiting.emplace_back(&piece.buffer, at.arena);
      bytes_ += piece.bytes;
    }
  }
  std::uint64_t vector_bytes = 0;
  for (std::size_t i = 0; i < vectors_.size(); ++i) {
    GpuVector& v = vectors_[i];
    v.name = weights.vectors[i].name;
    v.size = static_cast<std::int64_t>(weights.vectors[i].values.size());
    v.indices = indices_of(weights.vectors[i].values);
    const std::uint64_t bytes = static_cast<std::uint64_t>(v.size) * 4;
    if (bytes > piece_bytes) {
      fail(ErrorKind::unsupported_model, "tensor '", v.name, "' has ", bytes, " bytes; ", device_->physical().name, " binds at most ",
           piece_bytes);
    }
    v.at = vector_bytes;
    vector_bytes += bytes;
  }
  if (vector_bytes > most) {
    fail(ErrorKind::unsupported_model, "norm weights, biases and other vectors of the model have ", vector_bytes, " bytes; ",
         device_->physical().name, " allocates at most ", most, " at once");
  }
  if (vector_bytes > 0) {
    const Arenas::Place at = arenas.take(vector_bytes);
    vectors_at_ = at.offset;
    waiting.emplace_back(&vector_buffer_, at.arena);
    bytes_ += vector_bytes;
  }
  if (!allocate) return;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (const std::uint64_t size : arenas.sizes()) buffers.push_back(device_->buffer(size, Place::device, "weights"));
  for (const auto& [buffer, arena] : waiting) *buffer = buffers[arena];
}

namespace {

// A part of the upload that is packed as one job: some rows of a piece of a matrix, or a whole vector.
struct PackedPart {
  const Matrix* matrix;  // null if the part is a vector
  const Vector* vector;
  const Buffer* to;
  std::uint64_t offset, bytes;
  std::int64_t first, rows, row_words;
};

void add_rows(std::vector<PackedPart>& parts, const Matrix& matrix, const GpuMatrix& m) {
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, kJobBytes / std::max<std::int64_t>(1, m.row_words * 4));
  for (const RowRange& piece : m.pieces) {
    for (std::int64_t row = 0; row < piece.rows; row += rows_at_once) {
      const std::int64_t rows = std::min(rows_at_once, piece.rows - row);
      parts.push_back({&matrix, nullptr, piece.buffer.get(), piece.offset + static_cast<std::uint64_t>(row * m.row_words * 4),
                       static_cast<std::uint64_t>(rows * m.row_words * 4), piece.first + row, rows, m.row_words});
    }
  }
}

}  // namespace

void GpuWeights::upload(const Weights& weights, const Progress& progress, const Cancel& cancel) {
  std::vector<PackedPart> parts;
  for (std::size_t i = 0; i < matrices_.size(); ++i) add_rows(parts, weights.matrices[i], matrices_[i]);
  for (std::size_t i = 0; i < vectors_.size(); ++i) {
    const GpuVector& v = vectors_[i];
    if (v.size > 0)
      parts.push_back(
          {nullptr, &weights.vectors[i], vector_buffer_.get(), vectors_at_ + v.at, static_cast<std::uint64_t>(v.size) * 4, 0, 0, 0});
  }

  std::mutex progress_mutex;
  std::uint64_t done = 0;
  const auto write = [&](const PackedPart& part, std::uint8_t* to) {
    if (part.vector != nullptr) {
      std::memcpy(to, part.vector->values.data(), part.bytes);
      return;
    }
    const Matrix& m = *part.matrix;
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(part.rows * row_bytes(m.format, m.cols)));
    m.read(part.first, part.rows, packed.data());
    check_finite(m, part.first, part.rows, packed.data());
    pack_rows(m.format, packed.data(), part.rows, m.cols, reinterpret_cast<std::uint32_t*>(to));
    const std::lock_guard lock(progress_mutex);
    done += packed.size();
    if (progress) progress(done);
  };

  std::uint64_t all_bytes = 0;
  for (const PackedPart& part : parts) all_bytes += (part.bytes + 15) / 16 * 16;
  const std::uint64_t staging_bytes = std::min({kStagingBytes, device_->limits().allocation / 16 * 16, all_bytes});
  std::shared_ptr<Buffer> staging[2];
  std::future<void> copying;  // the copy from the staging buffer that is not being filled; its destructor waits for the copy
  for (std::size_t begin = 0, turn = 0; begin < parts.size(); ++turn) {
    const bool direct = parts[begin].to->mapped() != nullptr;
    const std::uint64_t limit = direct ? kTurnBytes : std::max(staging_bytes, parts[begin].bytes);
    std::vector<std::uint64_t> at;
    std::uint64_t bytes = 0;
    std::size_t end = begin;
    for (; end < parts.size() && bytes + parts[end].bytes <= limit && (parts[end].to->mapped() != nullptr) == direct; ++end) {
      at.push_back(bytes);
      bytes += (parts[end].bytes + 15) / 16 * 16;
    }
    std::shared_ptr<Buffer>& stage = staging[turn % 2];
    if (!direct && (!stage || stage->bytes() < bytes))
      stage = device_->buffer(std::max(bytes, staging_bytes), Place::upload, "staging memory");
    parallel(
        static_cast<std::int64_t>(end - begin),
        [&](std::int64_t i) {
          const PackedPart& part = parts[begin + static_cast<std::size_t>(i)];
          write(part, direct ? part.to->mapped() + part.offset : stage->mapped() + at[static_cast<std::size_t>(i)]);
        },
        cancel);
    if (!direct) {
      std::vector<Command> copies;
      for (std::size_t i = begin; i < end; ++i) {
        copies.push_back(
            Copy{stage.get(), parts[i].to, {{.srcOffset = at[i - begin], .dstOffset = parts[i].offset, .size = parts[i].bytes}}});
      }
      if (copying.valid()) copying.get();
      const auto copy = [this, stage, copies = std::move(copies), &cancel] {
        const auto my_turn = device_->take_turn(cancel);
        Recording(*device_, copies).run(cancel);
      };
      try {
        copying = std::async(std::launch::async, copy);
      } catch (const std::system_error&) {  // no thread can be started, so this thread copies
        copy();
      }
    }
    begin = end;
  }
  if (copying.valid()) copying.get();
}

VectorRange GpuWeights::range_of(std::span<const VectorId> ids) const {
  const GpuVector *first = nullptr, *last = nullptr;
  for (const VectorId id : ids) {
    if (id == VectorId::none) continue;
    const GpuVector& vector = (*this)[id];
    if (first == nullptr || vector.at < first->at) first = &vector;
    if (last == nullptr || vector.at > last->at) last = &vector;
  }
  if (first == nullptr) return {};
  const std::uint64_t begin = first->at / kAlignment * kAlignment, end = last->at + static_cast<std::uint64_t>(last->size) * 4;
  if (end - begin > device_->limits().range) {
    fail(ErrorKind::unsupported_model, "tensors '", first->name, "' and '", last->name, "' of one operation are ", end - begin,
         " bytes apart; ", device_->physical().name, " binds at most ", device_->limits().range);
  }
  return {vector_buffer_.get(), vectors_at_ + begin, end - begin, begin};
}

WeightShapes GpuWeights::shapes() const {
  WeightShapes shapes;
  for (const GpuMatrix& m : matrices_) {
    shapes.matrices.push_back({m.name, m.format, m.rows, m.cols, static_cast<std::int32_t>(m.experts), !m.pieces.empty(), m.rounding});
  }
  for (const GpuVector& v : vectors_) shapes.vectors.push_back({v.name, v.size, v.indices});
  return shapes;
}

}  // namespace pumice::vulkan
