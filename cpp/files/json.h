// Reads JSON from untrusted files as a stream of events. Only values that the caller keeps take memory, and the nesting depth is limited.
// Only json.cpp uses the JSON library, and none of the library's exceptions reach a caller.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "files/metadata.h"

namespace pumice::files {

using JsonScalar = std::variant<std::monostate, bool, std::int64_t, std::uint64_t /* only above 2^63 - 1 */, double, std::string>;

class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin_object() = 0;
  virtual void key(std::string name) = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void scalar(JsonScalar value) = 0;
};

// Parses `text` and calls `events`. Throws model_format if the text is not JSON or is nested deeper than kMaxJsonDepth. `base` is the
// offset of the text in the file. It is added to the offsets in errors.
void parse_json(const std::string& file, const std::string& field, std::uint64_t base, std::string_view text, JsonEvents& events);

// Parses config.json into flat entries with dotted keys: {"rope": {"factor": 2}} becomes the entry "rope.factor". A list of scalars of one
// type becomes one entry. In other lists, the index of an item takes the place of its key ("rope.0.factor"). Throws model_format if a key
// comes twice.
Metadata::Entries parse_config(const std::string& file, std::string_view text);

}  // namespace pumice::files
