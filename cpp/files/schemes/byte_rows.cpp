#include "files/schemes/byte_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pumice::files::schemes {

void refuse_experts(const PackedFolder& folder, const TensorInfo& matrix) {
  if (matrix.shape.size() != 3) return;
  folder.unsupported("quant_method", "has all experts in ", matrix.name,
                     ", which is not read if it is packed; one tensor for each expert is");
}

ByteRows::ByteRows(const PackedFolder& folder, std::vector<TensorInfo> tensors, bool turned) : tensors_(std::move(tensors)) {
  const std::vector<std::int64_t>& shape = tensors_[0].shape;
  constexpr std::int64_t kMostExperts = 1 << 16;
  const bool stack = shape.size() == 3;
  if (stack) experts_ = shape[0];
  if (experts_ > kMostExperts) folder.fail_tensor(tensors_[0], "has ", experts_, " experts; up to ", kMostExperts, " are read");
  rows_ = turned ? shape[2] : shape[stack ? 1 : 0];
  for (const TensorInfo& tensor : tensors_) widths_.push_back(turned ? tensor.shape[1] : tensor.shape.back());
  for (std::int64_t expert = 0; turned && expert < experts_; ++expert) {
    std::vector<ColumnTensor> parts;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      TensorInfo part = tensors_[i];
      part.shape = {widths_[i], rows_};
      part.bytes = static_cast<std::uint64_t>(widths_[i] * rows_);
      part.offset += static_cast<std::uint64_t>(expert) * part.bytes;
      parts.push_back({std::move(part)});
    }
    columns_.push_back(folder.columns(std::move(parts), rows_));
  }
}

void ByteRows::read(std::span<const File> files, std::int64_t first, std::int64_t count, std::span<std::uint8_t* const> out) const {
  for (std::size_t i = 0; columns_.empty() && i < tensors_.size(); ++i)
    read_bytes(files, tensors_[i], static_cast<std::uint64_t>(first * widths_[i]), static_cast<std::uint64_t>(count * widths_[i]), out[i]);
  if (columns_.empty()) return;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t expert = (first + done) / rows_, begin = (first + done) % rows_;
    const Columns::Slab slab = columns_[static_cast<std::size_t>(expert)]->with(files, begin);
    const std::int64_t now = std::min(count - done, slab.end() - begin);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Columns::Turned rows = slab.turned(i, begin, begin + now);
      std::memcpy(out[i] + done * widths_[i], rows.column<std::uint8_t>(begin), static_cast<std::size_t>(now * widths_[i]));
    }
    done += now;
  }
}

TensorInfo ByteRows::tensor(const std::string& name, std::int64_t cols, Format format, std::shared_ptr<const MadeTensor> made) const {
  TensorInfo tensor = made_matrix(name, rows(), cols, format, tensors_[0], std::move(made));
  if (tensors_[0].shape.size() == 3) {
    tensor.shape = {experts_, rows_, cols};
    if (columns_.empty()) tensor.name = name;
  }
  return tensor;
}

}  // namespace pumice::files::schemes
