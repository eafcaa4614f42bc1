#include "files/json.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "files/limits.h"
#include "files/text.h"

namespace pumice::files {
namespace {

// Calls look(i) for each character json[i] outside of strings, until look() returns true. Returns the i for which look() returned true, or
// the size of `json`.
template <class Look>
std::size_t find_outside_strings(std::string_view json, const Look& look) {
  bool quoted = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '"') quoted = !quoted;
    if (quoted && json[i] == '\\') ++i;  // the next character is escaped
    if (!quoted && look(i)) return i;
  }
  return json.size();
}

// Returns the offset at which `json` is first nested deeper than allowed. It is searched for here, because the JSON library does not give
// the offset of a list or an object.
std::size_t first_too_deep(std::string_view json) {
  int depth = 0;
  return find_outside_strings(json, [&](std::size_t i) {
    depth += (json[i] == '[' || json[i] == '{') - (json[i] == ']' || json[i] == '}');
    return depth > kMaxJsonDepth;
  });
}

// Turns the JSON library's calls into pumice's events.
class Adapter {
 public:
  Adapter(const std::string& file, const std::string& field, std::uint64_t base, std::string_view text, JsonEvents& events)
      : file_(file), field_(field), base_(base), text_(text), events_(events) {}

  bool null() { return pass(std::monostate{}); }
  bool boolean(bool value) { return pass(value); }
  bool number_integer(std::int64_t value) { return pass(value); }
  bool number_unsigned(std::uint64_t value) {
    return value <= static_cast<std::uint64_t>(INT64_MAX) ? pass(static_cast<std::int64_t>(value)) : pass(value);
  }
  bool number_float(double value, const std::string&) { return pass(value); }
  bool string(std::string& value) { return pass(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // JSON text has no binary values
  bool start_object(std::size_t) { return enter(), events_.begin_object(), true; }
  bool key(std::string& name) { return events_.key(std::move(name)), true; }
  bool end_object() { return --depth_, events_.end_object(), true; }
  bool start_array(std::size_t) { return enter(), events_.begin_array(), true; }
  bool end_array() { return --depth_, events_.end_array(), true; }
  bool parse_error(std::size_t position, const std::string& near, const nlohmann::json::exception& error) {
    const bool range = dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr;
    fail_at(ErrorKind::model_format, file_, field_, base_ + (position > 0 ? position - 1 : 0),
            range ? "has a number that is too large: " : "is not valid JSON near ", quote(near));
  }

 private:
  bool pass(JsonScalar value) { return events_.scalar(std::move(value)), true; }
  void enter() {
    if (++depth_ > kMaxJsonDepth) {
      fail_at(ErrorKind::model_format, file_, field_, base_ + first_too_deep(text_), "is nested deeper than ", kMaxJsonDepth, " levels");
    }
  }

  const std::string& file_;
  const std::string& field_;
  std::uint64_t base_;
  std::string_view text_;
  JsonEvents& events_;
  int depth_ = 0;
};

class ConfigBuilder : public JsonEvents {
 public:
  explicit ConfigBuilder(const std::string& file) : file_(file) {}

  void begin_object() override { open(false); }
  void begin_array() override { open(true); }
  void key(std::string name) override {
    frames_.back().key = std::move(name);
    ++frames_.back().count;
  }
  void end_object() override {
    const bool empty = frames_.back().count == 0;
    frames_.pop_back();
    if (empty && !frames_.empty()) put(path(), Nested{});
  }
  void scalar(JsonScalar value) override {
    if (frames_.empty()) fail_at(ErrorKind::model_format, file_, "", 0, "is not a JSON object");
    Frame& frame = frames_.back();
    if (++values_ > kMaxConfigValues) {
      if (frame.array) frame.key = str(frame.count);
      fail_at(ErrorKind::model_format, file_, field_of(path()), std::nullopt, "the file has more than ", kMaxConfigValues,
              " values up to here");
    }
    if (!frame.array) return put(path(), std::visit([](auto& held) { return Value(std::move(held)); }, value));
    frame.items.emplace_back(frame.count++, std::move(value));
  }
  void end_array() override {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (frame.count == 0) return put(path(), std::vector<std::int64_t>{});
    if (frame.items.size() == frame.count) {
      if (auto list = as_list(frame.items)) return put(path(), std::move(*list));
    }
    const std::string at = path();
    put(at, Nested{.list = true, .items = frame.count});
    for (auto& [index, item] : frame.items) {
      put(str(at, ".", index), std::visit([](auto& held) { return Value(std::move(held)); }, item));
    }
  }

  Metadata::Entries take() && { return std::move(entries_); }

 private:
  using Items = std::vector<std::pair<std::size_t, JsonScalar>>;
  struct Frame {
    bool array = false;
    std::string key;        // the key that is being read; in arrays: the index of the item that is being read
    std::size_t count = 0;  // number of items or keys so far
    Items items;            // in arrays: the scalars, each with its index
  };

  void open(bool array) {
    if (frames_.empty() && array) fail_at(ErrorKind::model_format, file_, "", 0, "is a JSON list; an object is needed");
    if (!frames_.empty() && frames_.back().array) frames_.back().key = str(frames_.back().count++);
    frames_.push_back({.array = array});
  }

  // Returns the dotted name of the value that is being read.
  std::string path() const {
    std::string dotted;
    for (const Frame& frame : frames_) {
      if (!dotted.empty()) dotted += '.';
      dotted += frame.key;
      if (dotted.size() > kMaxConfigKeyBytes) {  // each value stores its whole dotted name, so long names could fill the memory
        fail_at(ErrorKind::model_format, file_, dotted, std::nullopt, "has a name of more than ", kMaxConfigKeyBytes, " bytes");
      }
    }
    return dotted;
  }

  void put(std::string key, Value value) {
    if (!entries_.try_emplace(key, std::move(value)).second) {
      fail_at(ErrorKind::model_format, file_, field_of(key), std::nullopt, "this key comes twice");
    }
  }

  template <class T>
  static std::optional<Value> list_of(const Items& items) {
    std::vector<T> list;
    list.reserve(items.size());
    for (const auto& [index, item] : items) {
      if (const T* held = std::get_if<T>(&item)) {
        list.push_back(*held);
      } else if (const auto* integer = std::get_if<std::int64_t>(&item); integer && std::is_same_v<T, double>) {
        list.push_back(static_cast<T>(*integer));
      } else {
        return std::nullopt;
      }
    }
    return list;
  }

  static std::optional<Value> as_list(const Items& items) {
    if (std::holds_alternative<std::string>(items.front().second)) {
      StringList list;
      list.reserve(items.size());
      for (const auto& [index, item] : items) {
        const auto* text = std::get_if<std::string>(&item);
        if (!text) return std::nullopt;
        list.push_back(*text);
      }
      return list;
    }
    if (auto list = list_of<bool>(items)) return list;
    if (auto list = list_of<std::int64_t>(items)) return list;
    return list_of<double>(items);
  }

  const std::string& file_;
  std::vector<Frame> frames_;
  std::size_t values_ = 0;
  Metadata::Entries entries_;
};

}  // namespace

void parse_json(const std::string& file, const std::string& field, std::uint64_t base, std::string_view text, JsonEvents& events) {
  Adapter adapter(file, field, base, text, events);
  // The parser takes a NUL for the end of the text, and would ignore the text after it.
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos)
    fail_at(ErrorKind::model_format, file, field, base + at, "has a NUL character, which JSON does not allow");
  nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);  // returns false only after parse_error(), which throws
}

namespace {

// Returns `text` with a large number in place of each Infinity outside of strings. JSON has no infinity, but Python's json module writes
// infinities as Infinity (time_step_limit of Mamba-2). The number has as many characters as "Infinity", so offsets in errors stay right.
std::string without_infinities(std::string_view text) {
  constexpr std::string_view kInfinity = "Infinity", kLarge = "1.79e308";
  static_assert(kInfinity.size() == kLarge.size());
  std::string json(text);
  find_outside_strings(json, [&](std::size_t i) {
    if (std::string_view(json).substr(i).starts_with(kInfinity)) json.replace(i, kLarge.size(), kLarge);  // does not change the length
    return false;
  });
  return json;
}

}  // namespace

Metadata::Entries parse_config(const std::string& file, std::string_view text) {
  ConfigBuilder builder(file);
  if (text.find("Infinity") == std::string_view::npos) {
    parse_json(file, "", 0, text, builder);
  } else {
    parse_json(file, "", 0, without_infinities(text), builder);
  }
  return std::move(builder).take();
}

}  // namespace pumice::files
