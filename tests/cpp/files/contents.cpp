#include "files/contents.h"

#include <sstream>
#include <string>
#include <string_view>

#include "files/model_file.h"
#include "files/prefix_file.h"
#include "files/text.h"

namespace pumice::files::testing {
namespace {

// Returns true if the error has one of the expected kinds, names its file and the field or the offset, and has a message in valid UTF-8
// that is not empty.
bool is_sound(const Error& error) {
  const bool kind =
      error.kind() == ErrorKind::model_format || error.kind() == ErrorKind::unsupported_model || error.kind() == ErrorKind::io;
  const bool place = error.kind() != ErrorKind::model_format || !error.field().empty() || error.offset();
  return kind && place && valid_utf8(error.what()) && valid_utf8(error.field()) && !std::string_view(error.what()).empty() &&
         !error.file().empty();
}

template <class Open>
std::optional<Contents> loaded(std::string* unsound, const Open& open) {
  try {
    return open();
  } catch (const Error& error) {
    if (!is_sound(error)) *unsound = str("unsound error: ", error.what());
  } catch (const std::exception& error) {
    *unsound = str("not a pumice error: ", error.what());
  } catch (...) {
    *unsound = "not an exception of the standard library";
  }
  return std::nullopt;
}

}  // namespace

std::string snapshot(const Value& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        std::ostringstream text;
        text.precision(17);
        if constexpr (std::is_same_v<T, std::monostate>) {
          text << "null";
        } else if constexpr (std::is_same_v<T, Nested>) {
          text << held.list << ' ' << held.items;
        } else if constexpr (std::is_same_v<T, std::string> || std::is_arithmetic_v<T>) {
          text << held;
        } else {
          for (std::size_t i = 0; i < held.size(); ++i) text << held[i] << '\x1F';
        }
        return std::move(text).str();
      },
      value);
}

Contents contents(const ModelFile& model) {
  Contents all;
  for (const auto& [key, value] : model.metadata().entries()) all.metadata.emplace(key, snapshot(value));
  std::vector<std::uint8_t> bytes;
  for (const TensorInfo& tensor : model.tensors()) {
    std::string shape;
    for (const std::int64_t extent : tensor.shape) shape += str(extent, ",");
    bytes.resize(tensor.bytes);
    model.read(tensor, 0, tensor.bytes, bytes.data());
    all.tensors.emplace(tensor.name, str(tensor.format_name, " ", shape, tensor.bytes));
    all.data.emplace(tensor.name, std::string(bytes.begin(), bytes.end()));
  }
  return all;
}

std::optional<Contents> load(const std::string& path, std::string* unsound) {
  return loaded(unsound, [&] { return contents(*ModelFile::open(path)); });
}

std::optional<Contents> load_weights(const std::string& path, std::string* unsound) {
  return loaded(unsound, [&] { return contents(*ModelFile::open_weights(path)); });
}

std::optional<Contents> load_prefix(const std::string& path, std::string* unsound) {
  return loaded(unsound, [&] {
    const PrefixFile file = PrefixFile::open(path, 1 << 20);
    const PrefixHead& head = file.head();
    Contents all;
    all.metadata = {{"model", str(head.model)}, {"made_by", head.made_by}, {"tokens", str(head.ids.size())}};
    for (std::size_t i = 0; i < head.ids.size(); ++i) all.tensors.emplace(str("id ", i), str(head.ids[i]));
    std::vector<std::uint8_t> bytes(head.page_bytes);
    for (std::uint64_t page = 0; page < head.pages(); ++page) {
      file.read(page, bytes);
      all.data.emplace(str("page ", page), std::string(bytes.begin(), bytes.end()));
    }
    bytes.resize(head.state_bytes);
    file.read_state(bytes);
    all.data.emplace("state", std::string(bytes.begin(), bytes.end()));
    return all;
  });
}

}  // namespace pumice::files::testing
