#include "engine/fingerprint.h"

#include <string>
#include <type_traits>
#include <vector>

#include "core/checksum.h"
#include "core/error.h"

namespace pumice::engine {
namespace {

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
        // Adds nothing for a nested value, because its items also have keys of their own, under which they are added.
        if constexpr (std::is_same_v<T, std::monostate> || std::is_same_v<T, files::Nested>) {
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

std::uint64_t fingerprint(const files::ModelFile& read) {
  require(read.sums() != nullptr, "fingerprint: nothing was summed of what was read");
  Sum sum;
  for (const auto& [key, value] : read.metadata().entries()) {
    if (is_name(key)) continue;
    sum.add(key);
    add(sum, value);
  }
  if (const auto architecture = read.string("general.architecture")) sum.add(*architecture);
  for (std::size_t i = 0; i < read.tensors().size(); ++i) {
    const files::TensorInfo& tensor = read.tensors()[i];
    const files::WideSum bytes = read.sums()->sum(i);
    sum.add(tensor.name);
    sum.add(tensor.format_name);
    sum.add_all(tensor.shape);
    sum.add_number(static_cast<std::int64_t>(bytes.low));
    sum.add_number(static_cast<std::int64_t>(bytes.high));
  }
  return sum.value();
}

std::uint64_t fingerprint(std::span<const model::LoraSpec> adapters) {
  Sum sum;
  for (const model::LoraSpec& adapter : adapters) {
    sum.add_number(static_cast<std::int64_t>(fingerprint(*adapter.file)));
    for (const model::LoraModule& module : adapter.modules) {
      sum.add(module.name);
      sum.add(module.a);
      sum.add(module.b);
      sum.add({reinterpret_cast<const std::uint8_t*>(&module.scale), sizeof module.scale});
      sum.add_number(static_cast<std::int64_t>(module.layout));
    }
  }
  return sum.value();
}

}  // namespace pumice::engine
