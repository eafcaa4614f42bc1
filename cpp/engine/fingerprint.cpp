#include "engine/fingerprint.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "core/checksum.h"

namespace pumice::engine {
namespace {

constexpr std::uint64_t kStretches = 16, kStretch = 256, kRows = 8;

class Sum {
 public:
  void add(std::span<const std::uint8_t> bytes) { sum_ = checksum(bytes, sum_); }
  void add(std::string_view text) { add({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}); }
  template <class T>
  void add_all(const std::vector<T>& values) {
    add({reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(T)});
  }
  void add_number(std::int64_t value) { add({reinterpret_cast<const std::uint8_t*>(&value), sizeof value}); }
  std::uint64_t value() const { return sum_; }

 private:
  std::uint64_t sum_ = 0;
};

bool is_name(std::string_view key) {
  return key.starts_with("tokenizer.") || key.starts_with("general.") || key == "_name_or_path" || key == "transformers_version";
}

void add(Sum& sum, const files::Value& value) {
  sum.add_number(static_cast<std::int64_t>(value.index()));
  std::visit(
      [&]<class T>(const T& v) {
        if constexpr (std::is_same_v<T, std::monostate>) {
        } else if constexpr (std::is_same_v<T, std::string>) {
          sum.add(v);
        } else if constexpr (std::is_same_v<T, files::StringList>) {
          for (std::size_t i = 0; i < v.size(); ++i) sum.add(v[i]);
        } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
          for (const bool b : v) sum.add_number(b);
        } else if constexpr (std::is_arithmetic_v<T>) {
          sum.add({reinterpret_cast<const std::uint8_t*>(&v), sizeof v});
        } else {
          sum.add_all(v);
        }
      },
      value);
}

}  // namespace

std::uint64_t fingerprint(const files::ModelFile& file) {
  Sum sum;
  for (const auto& [key, value] : file.metadata().entries()) {
    if (is_name(key)) continue;
    sum.add(key);
    add(sum, value);
  }
  if (const auto architecture = file.string("general.architecture")) sum.add(*architecture);
  std::vector<std::uint8_t> bytes;
  for (const files::TensorInfo& tensor : file.tensors()) {
    sum.add(tensor.name);
    sum.add(tensor.format_name);
    sum.add_all(tensor.shape);
    const std::uint64_t length = std::min(tensor.bytes, kStretch), stretches = tensor.bytes <= kStretches * kStretch ? 1 : kStretches;
    bytes.resize(static_cast<std::size_t>(stretches == 1 ? tensor.bytes : length));
    for (std::uint64_t i = 0; i < stretches && !bytes.empty(); ++i) {
      const std::uint64_t last = tensor.bytes - bytes.size();
      file.read(tensor, stretches == 1 ? 0 : last / (stretches - 1) * i, bytes.size(), bytes.data());
      sum.add(bytes);
    }
  }
  return sum.value();
}

std::uint64_t fingerprint(const Weights& weights) {
  Sum sum;
  std::vector<std::uint8_t> row;
  for (const Matrix& m : weights.matrices) {
    sum.add(m.name);
    sum.add_number(static_cast<std::int64_t>(m.format));
    sum.add_number(m.rows);
    sum.add_number(m.cols);
    row.resize(static_cast<std::size_t>(row_bytes(m.format, m.cols)));
    const auto rows = std::min<std::int64_t>(m.rows, kRows);
    for (std::int64_t i = 0; i < rows; ++i) {
      m.read(rows == 1 ? 0 : (m.rows - 1) / (rows - 1) * i, 1, row.data());
      sum.add(row);
    }
  }
  for (const Vector& v : weights.vectors) {
    sum.add(v.name);
    sum.add_all(v.values);
  }
  return sum.value();
}

}  // namespace pumice::engine
