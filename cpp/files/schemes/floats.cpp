#include "files/schemes/floats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "files/schemes/codes.h"

namespace pumice::files::schemes {
namespace {

class MadeOfFloats final : public MadeTensor {
 public:
  explicit MadeOfFloats(Floats floats) : floats_(std::move(floats)) {
    packing = floats_.packing;
    not_exact = floats_.not_exact;
  }

  void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    constexpr std::int64_t kRows = 16;  // number of rows that are made at a time, so that their floats stay in the cache
    std::vector<float> values(static_cast<std::size_t>(std::min(kRows, count) * floats_.cols));
    for (std::int64_t done = 0; done < count; done += kRows) {
      const std::int64_t now = std::min(kRows, count - done);
      floats_.read(files, first + done, now, values.data());
      pack(floats_.format, values.data(), now * floats_.cols, out + done * row_bytes(floats_.format, floats_.cols));
    }
  }

  const Floats& floats() const { return floats_; }

 private:
  Floats floats_;
};

std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size =
        exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    values[static_cast<std::size_t>(code)] = (code & 127) == 127 ? std::numeric_limits<float>::quiet_NaN() : code < 128 ? size : -size;
  }
  return values;
}

}  // namespace

TensorInfo made_of(Floats floats) {
  const auto made = std::make_shared<const MadeOfFloats>(std::move(floats));
  const Floats& of = made->floats();
  return made_matrix(of.module, of.rows, of.cols, of.format, of.from, made);
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = make_e4m3_values();
  return values;
}

}  // namespace pumice::files::schemes
