#include "fuzz/mutate.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <span>

#include "core/checksum.h"
#include "core/formats.h"
#include "core/kinds.h"
#include "files/gguf_formats.h"

namespace pumice::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kNumbers[] = {
    0,          1,          2,          3,          4,          7,          8,          16,         31,
    32,         33,         64,         127,        128,        255,        256,        1000,       4095,
    4096,       65535,      65536,      1u << 20,   0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, (1ull << 42) + 1,
    1ull << 60, 1ull << 61, 1ull << 62, ~0ull >> 1, 1ull << 63, ~0ull - 1,  ~0ull};
constexpr double kDoubles[] = {0.5, -0.0, 1e-5, 1e-45, 1e30, 1e38, 3.5e38, 1e300, -1.0, -1e9, 0.1, 10000.0};

template <class T>
void append(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
}

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return n < 2 ? 0 : random_() % n; }
  bool once_in(std::size_t n) { return below(n) == 0; }
  template <class List>
  auto& one_of(List&& list) {
    return list[below(std::size(list))];
  }
  std::uint64_t number() { return one_of(kNumbers); }
  // Returns a number near the given one, or one of the boundary values.
  std::uint64_t near(std::uint64_t value) {
    switch (below(8)) {
      case 0:
        return value + 1;
      case 1:
        return value - 1;
      case 2:
        return value * 2;
      case 3:
        return value / 2;
      case 4:
        return value ^ 1ull << below(64);
      default:
        return number();
    }
  }

 private:
  std::minstd_rand random_;
};

// ---------------------------------------------------------------- GGUF
struct Key {
  std::string name;
  std::uint32_t type = 0, item_type = 0;
  std::vector<std::string> items;  // the bytes of the value, or of each item of a list; without the length of a text
};
struct Tensor {
  std::string name;
  std::vector<std::uint64_t> dims;
  std::uint32_t format = 0;
  std::uint64_t offset = 0;
};
struct Gguf {
  std::uint32_t version = 3;
  std::vector<Key> keys;
  std::vector<Tensor> tensors;
  std::string data;
  static constexpr std::uint32_t kText = 8, kList = 9;
};

std::size_t width(std::uint32_t type) {  // bytes of a number; 0 for texts, lists and types that do not exist
  constexpr std::size_t kWidths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kWidths) ? kWidths[type] : 0;
}

// Reads as much of a file as can be read. The rest becomes its data.
Gguf read_gguf(std::string_view in) {
  Gguf file;
  std::size_t at = 4;
  bool good = true;
  const auto bytes = [&](std::uint64_t count) -> std::string_view {
    good = good && count <= in.size() - at;
    if (!good) return {};
    at += count;
    return in.substr(at - count, count);
  };
  const auto number = [&](std::size_t size) {
    std::uint64_t value = 0;
    const std::string_view read = bytes(size);
    for (std::size_t i = 0; i < read.size(); ++i) value |= std::uint64_t{static_cast<unsigned char>(read[i])} << (8 * i);
    return value;
  };
  const auto text = [&] { return std::string(bytes(number(8))); };
  file.version = static_cast<std::uint32_t>(number(4));
  const std::uint64_t tensors = number(8), keys = number(8);
  std::size_t sound = at;
  for (std::uint64_t i = 0; good && i < keys; ++i) {
    Key key{text(), static_cast<std::uint32_t>(number(4)), 0, {}};
    const auto item = [&](std::uint32_t type) { key.items.push_back(type == Gguf::kText ? text() : std::string(bytes(width(type)))); };
    if (key.type == Gguf::kList) {
      key.item_type = static_cast<std::uint32_t>(number(4));
      const std::uint64_t count = number(8);
      good = good && count <= in.size() && (key.item_type == Gguf::kText || width(key.item_type) > 0);
      for (std::uint64_t j = 0; good && j < count; ++j) item(key.item_type);
    } else {
      good = good && (key.type == Gguf::kText || width(key.type) > 0);
      item(key.type);
    }
    if (good) file.keys.push_back(std::move(key)), sound = at;
  }
  for (std::uint64_t i = 0; good && i < tensors; ++i) {
    Tensor tensor;
    tensor.name = text();
    const std::uint64_t dims = number(4);
    good = good && dims <= 8;
    for (std::uint64_t j = 0; good && j < dims; ++j) tensor.dims.push_back(number(8));
    tensor.format = static_cast<std::uint32_t>(number(4));
    tensor.offset = number(8);
    if (good) file.tensors.push_back(std::move(tensor)), sound = at;
  }
  if (good) sound = std::min(in.size(), (at + 31) / 32 * 32);
  file.data = in.substr(sound);
  return file;
}

std::uint64_t alignment(const Gguf& file) {
  for (const Key& key : file.keys) {
    if (key.name != "general.alignment" || key.type != 4 || key.items.empty() || key.items[0].size() != 4) continue;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value |= std::uint64_t{static_cast<unsigned char>(key.items[0][i])} << (8 * i);
    if (value >= 1 && value <= 65536 && (value & (value - 1)) == 0) return value;
  }
  return 32;
}

std::string write_gguf(const Gguf& file) {
  std::string out = "GGUF";
  const auto text = [&](const std::string& value) { append(out, std::uint64_t{value.size()}), out += value; };
  append(out, file.version);
  append(out, std::uint64_t{file.tensors.size()});
  append(out, std::uint64_t{file.keys.size()});
  for (const Key& key : file.keys) {
    text(key.name);
    append(out, key.type);
    const auto item = [&](std::uint32_t type, std::string value) {
      if (type == Gguf::kText) return text(value);
      value.resize(width(type));
      out += value;
    };
    if (key.type == Gguf::kList) {
      append(out, key.item_type);
      append(out, std::uint64_t{key.items.size()});
      for (const std::string& value : key.items) item(key.item_type, value);
    } else {
      item(key.type, key.items.empty() ? "" : key.items[0]);
    }
  }
  for (const Tensor& tensor : file.tensors) {
    text(tensor.name);
    append(out, static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) append(out, dim);
    append(out, tensor.format);
    append(out, tensor.offset);
  }
  const std::uint64_t align = alignment(file);
  out.resize((out.size() + align - 1) / align * align);
  return out + file.data;
}

// Gives each tensor the place that its shape and format need, as far as the file would have at most `most` bytes.
void lay_out(Gguf& file, std::size_t most) {
  std::uint64_t end = 0;
  const std::uint64_t align = alignment(file);
  for (Tensor& tensor : file.tensors) {
    std::uint64_t block = 0, block_bytes = 0, values = 1;
    if (const auto format = format_from_gguf(tensor.format)) {
      block = static_cast<std::uint64_t>(info(*format).block), block_bytes = static_cast<std::uint64_t>(info(*format).block_bytes);
    } else if (const auto* other = files::gguf_format(tensor.format)) {
      block = static_cast<std::uint64_t>(other->block), block_bytes = static_cast<std::uint64_t>(other->block_bytes);
    }
    for (const std::uint64_t dim : tensor.dims) values = dim > most || values > most ? most + 1 : values * dim;
    if (block == 0 || values > 8 * most) return;
    tensor.offset = end;
    end = (end + values / block * block_bytes + align - 1) / align * align;
  }
  if (end <= most) file.data.resize(end, '\x11');
}

// ---------------------------------------------------------------- JSON
void collect(Json& node, std::vector<Json*>& all) {
  all.push_back(&node);
  if (node.is_structured())
    for (auto& child : node) collect(child, all);
}

void collect_words(const Json& node, std::set<std::string>& words) {
  if (node.is_string()) words.insert(node.get<std::string>());
  if (node.is_object())
    for (const auto& [key, child] : node.items()) words.insert(key), collect_words(child, words);
  if (node.is_array())
    for (const Json& child : node) collect_words(child, words);
}

// ---------------------------------------------------------------- one change
class Change {
 public:
  Change(Dice& dice, const std::vector<std::string>& words, const MutateBytes& bytes, std::size_t most)
      : dice_(dice), words_(words), bytes_(bytes), most_(most) {}

  std::string gguf(std::string_view input) {
    Gguf file = read_gguf(input);
    for (std::size_t i = 1 + dice_.below(3); i > 0; --i) {
      if (dice_.once_in(2) && !file.tensors.empty())
        tensor(file);
      else if (!file.keys.empty() && !dice_.once_in(12))
        key(file);
      else
        file.version = dice_.once_in(4) ? static_cast<std::uint32_t>(dice_.number()) : 2 + static_cast<std::uint32_t>(dice_.below(2));
    }
    if (!dice_.once_in(4)) lay_out(file, most_);
    return write_gguf(file);
  }

  std::string json(std::string_view input) {
    Json root = Json::parse(input, nullptr, false);
    if (root.is_discarded()) return bytes_(input);
    change(root);
    return text_of(root);
  }

  std::string safetensors(std::string_view input) {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(8, input.size()); ++i)
      length |= std::uint64_t{static_cast<unsigned char>(input[i])} << (8 * i);
    if (input.size() < 8 || length > input.size() - 8) return bytes_(input);
    std::string data(input.substr(8 + length));
    Json header = Json::parse(input.substr(8, length), nullptr, false);
    std::string text;
    if (header.is_discarded()) {
      text = bytes_(input.substr(8, length));
    } else if (dice_.once_in(6)) {
      text = input.substr(8, length);
      data = bytes_(data);
    } else {
      change(header);
      if (!dice_.once_in(4)) place(header, data);
      text = text_of(header);
    }
    std::string out;
    append(out, dice_.once_in(24) ? dice_.near(text.size()) : std::uint64_t{text.size()});
    return out + text + data;
  }

  // Changes a field or a text of a prefix file, and makes its length and checksum right again.
  std::string prefix(std::string_view input) {
    constexpr std::size_t kFixed = 64;
    std::string out(input);
    if (out.size() < kFixed) return bytes_(input);
    if (dice_.once_in(3)) out = bytes_(out);
    if (out.size() < kFixed) return out;
    const auto number = [&](std::size_t at, std::size_t size) {
      std::uint64_t value = 0;
      for (std::size_t i = 0; i < size; ++i) value |= std::uint64_t{static_cast<unsigned char>(out[at + i])} << (8 * i);
      return value;
    };
    const auto put = [&](std::size_t at, std::size_t size, std::uint64_t value) {
      for (std::size_t i = 0; i < size; ++i) out[at + i] = static_cast<char>(value >> (8 * i));
    };
    constexpr std::pair<std::size_t, std::size_t> kFields[] = {{12, 4}, {16, 8}, {24, 8}, {32, 8}, {40, 8}, {48, 8}};
    const auto [at, size] = dice_.one_of(kFields);
    put(at, size, dice_.once_in(2) ? dice_.near(number(at, size)) : dice_.below(200));
    if (dice_.once_in(6)) return out;
    const std::uint64_t made_by = number(12, 4), tokens = number(32, 8), state = number(40, 8), page = number(48, 8);
    if (made_by > most_ || tokens > most_ || state > most_ || page > most_) return out;
    const std::uint64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
    const std::uint64_t start = (kFixed + made_by + 4 * tokens + 8 * (pages + 1) + 63) / 64 * 64, all = start + pages * page + state;
    if (all > most_) return out;
    out.resize(all);
    put(16, 8, all);
    const auto span = [&](std::size_t first, std::size_t count) {
      return std::span<const std::uint8_t>(reinterpret_cast<const std::uint8_t*>(out.data()) + first, count);
    };
    const bool right = !dice_.once_in(4);
    for (std::uint64_t i = 0; right && i <= pages; ++i) {
      const std::uint64_t sum = i < pages ? checksum(span(start + i * page, page)) : checksum(span(start + pages * page, state));
      put(kFixed + made_by + 4 * tokens + 8 * i, 8, sum);
    }
    put(56, 8, checksum(span(kFixed, start - kFixed), checksum(span(0, kFixed - 8))));
    return out;
  }

 private:
  std::string word(const std::string& now) {
    if (words_.empty() || dice_.once_in(3)) return bytes_(now);
    return dice_.one_of(words_);
  }

  void key(Gguf& file) {
    const std::size_t at = dice_.below(file.keys.size());
    Key& key = file.keys[at];
    std::string* item = key.items.empty() ? nullptr : &dice_.one_of(key.items);
    const bool list = key.type == Gguf::kList;
    const std::uint32_t type = list ? key.item_type : key.type;
    switch (dice_.below(8)) {
      case 0:
        file.keys.erase(file.keys.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1: {
        Key copy = key;
        if (dice_.once_in(2)) copy.name = word(copy.name);
        file.keys.insert(file.keys.begin() + static_cast<std::ptrdiff_t>(dice_.below(file.keys.size())), std::move(copy));
        break;
      }
      case 2:
        key.name = word(key.name);
        break;
      case 3:
        (list && dice_.once_in(2) ? key.item_type : key.type) = static_cast<std::uint32_t>(dice_.below(14));
        break;
      case 4:
        if (list && item) key.items.insert(key.items.begin() + static_cast<std::ptrdiff_t>(dice_.below(key.items.size())), *item);
        break;
      case 5:
        if (list && item) key.items.erase(key.items.begin() + static_cast<std::ptrdiff_t>(dice_.below(key.items.size())));
        break;
      default:
        if (!item) break;
        if (type == Gguf::kText)
          *item = word(*item);
        else if (dice_.once_in(4))
          *item = bytes_(*item);
        else
          item->clear(), append(*item, dice_.number());
    }
  }

  void tensor(Gguf& file) {
    const std::size_t at = dice_.below(file.tensors.size());
    Tensor& tensor = file.tensors[at];
    switch (dice_.below(9)) {
      case 0:
        file.tensors.erase(file.tensors.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1: {
        Tensor copy = tensor;
        copy.name = word(copy.name);
        file.tensors.push_back(std::move(copy));
        break;
      }
      case 2:
        tensor.name = word(tensor.name);
        break;
      case 3:
        tensor.dims.push_back(dice_.number());
        break;
      case 4:
        if (!tensor.dims.empty()) tensor.dims.pop_back();
        break;
      case 5:
        tensor.offset = dice_.near(tensor.offset);
        break;
      case 6:
        tensor.format = static_cast<std::uint32_t>(dice_.once_in(8) ? dice_.number() : dice_.below(48));
        break;
      default:
        if (tensor.dims.empty()) break;
        std::uint64_t& dim = dice_.one_of(tensor.dims);
        dim = dice_.once_in(2) ? 32 * (1 + dice_.below(16)) : dice_.near(dim);
    }
  }

  Json value(const std::vector<Json*>& all) {
    switch (dice_.below(10)) {
      case 0:
        return nullptr;
      case 1:
        return dice_.once_in(2);
      case 2:
        return dice_.one_of(kDoubles);
      case 3:
        return words_.empty() ? Json("") : Json(dice_.one_of(words_));
      case 4:
        return dice_.once_in(2) ? Json::object() : Json::array();
      case 5:
        return -static_cast<std::int64_t>(dice_.below(5));
      case 6:
      case 7:
        return *dice_.one_of(all);
      default:
        return dice_.number();
    }
  }

  void change(Json& root) {
    for (std::size_t i = 1 + dice_.below(3); i > 0; --i) {
      std::vector<Json*> all;
      collect(root, all);
      Json& node = *dice_.one_of(all);
      if (node.is_object() && !node.empty() && !dice_.once_in(8)) {
        auto chosen = node.begin();
        std::advance(chosen, static_cast<std::ptrdiff_t>(dice_.below(node.size())));
        const std::string name = chosen.key();
        if (dice_.once_in(4)) {
          node.erase(name);
        } else {
          Json copy = dice_.once_in(2) ? *chosen : value(all);
          if (dice_.once_in(4)) node.erase(name);
          node[valid(word(name))] = std::move(copy);
        }
      } else if (node.is_array() && !node.empty() && !dice_.once_in(8)) {
        const std::size_t at = dice_.below(node.size());
        if (dice_.once_in(3))
          node.erase(at);
        else if (Json copy = dice_.once_in(2) ? node[at] : value(all); dice_.once_in(2))
          node[at] = std::move(copy);
        else
          node.insert(node.begin() + static_cast<std::ptrdiff_t>(at), std::move(copy));
      } else if (node.is_number_integer() && dice_.once_in(2)) {
        node = dice_.near(node.get<std::uint64_t>());
      } else if (node.is_string() && dice_.once_in(2)) {
        node = valid(word(node.get<std::string>()));
      } else {
        Json copy = value(all);
        node = std::move(copy);
      }
    }
  }

  // Gives each tensor of a header the bytes that its shape and dtype need, as far as the file would have at most most_ bytes.
  void place(Json& header, std::string& data) {
    if (!header.is_object()) return;
    std::uint64_t end = 0;
    for (auto& [name, entry] : header.items()) {
      if (name == "__metadata__" || !entry.is_object() || !entry.contains("shape") || !entry["shape"].is_array()) continue;
      const std::string dtype = entry.contains("dtype") && entry["dtype"].is_string() ? entry["dtype"].get<std::string>() : "";
      std::uint64_t bytes = dtype.ends_with("64") ? 8 : dtype.ends_with("32") ? 4 : dtype.ends_with("16") ? 2 : 1;
      for (const Json& length : entry["shape"]) {
        if (!length.is_number_unsigned() || length.get<std::uint64_t>() > most_) return;
        bytes *= length.get<std::uint64_t>();
        if (bytes > most_) return;
      }
      entry["data_offsets"] = {end, end + bytes};
      end += bytes;
      if (end > most_) return;
    }
    data.resize(end, '\x11');
  }

  static std::string valid(const std::string& text) {  // a Json may hold bytes that are not UTF-8, but cannot be written then
    const Json held = text;
    return Json::parse(text_of(held)).get<std::string>();
  }
  static std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

  Dice& dice_;
  const std::vector<std::string>& words_;
  const MutateBytes& bytes_;
  const std::size_t most_;
};

}  // namespace

Mutator::Mutator(Form form, const std::vector<std::string>& seeds) : form_(form) {
  std::set<std::string> words;
  for (const std::string& seed : seeds) {
    if (seed.starts_with("GGUF")) {
      const Gguf file = read_gguf(seed);
      for (const Key& key : file.keys) words.insert(key.name);
      for (const Tensor& tensor : file.tensors) words.insert(tensor.name);
      continue;
    }
    // Every run of the seed that is a JSON text: the whole, its halves, or a header.
    const auto [first, second] = halves(seed);
    const std::string_view header = std::string_view(seed).substr(std::min<std::size_t>(8, seed.size()));
    const std::string_view inner = second.substr(std::min<std::size_t>(8, second.size()));
    for (std::string_view text :
         {std::string_view(seed), first, second, header.substr(0, header.rfind('}') + 1), inner.substr(0, inner.rfind('}') + 1)}) {
      if (!text.starts_with('{')) continue;
      for (; !text.empty(); text = text.substr(0, text.rfind('}', text.size() - 2) + 1)) {  // data behind a header may hold a brace
        const Json parsed = Json::parse(text, nullptr, false);
        if (!parsed.is_discarded()) collect_words(parsed, words);
        if (!parsed.is_discarded() || text.size() < 2) break;
      }
    }
  }
  words_.assign(words.begin(), words.end());
}

std::string Mutator::mutate(std::string_view input, std::size_t most, std::uint32_t seed, const MutateBytes& bytes) const {
  Dice dice(seed);
  if (dice.once_in(6)) return bytes(input);
  Change change(dice, words_, bytes, most);
  const auto in_halves = [&](auto second_form) {
    const auto [first, second] = halves(input);
    return dice.once_in(2) ? change.json(first) + '\0' + std::string(second) : std::string(first) + '\0' + second_form(second);
  };
  const bool gguf = input.starts_with("GGUF");
  switch (form_) {
    case Form::gguf:
      return gguf ? change.gguf(input) : bytes(input);
    case Form::adapter:
      return gguf ? change.gguf(input) : change.safetensors(input);
    case Form::safetensors:
      return change.safetensors(input);
    case Form::json:
      return change.json(input);
    case Form::json_pair:
      return gguf ? change.gguf(input) : in_halves([&](std::string_view text) { return change.json(text); });
    case Form::json_and_safetensors:
      return in_halves([&](std::string_view file) { return change.safetensors(file); });
    case Form::prefix:
      return change.prefix(input);
  }
  return bytes(input);
}

}  // namespace pumice::fuzz
