// Reads JSON from untrusted files as a stream of events. Only values that the caller keeps take memory, and depth is bounded. Only json.cpp
// uses the JSON library; it lets none of the library's exceptions out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "files/metadata.h"

namespace pumice::files {

using JsonScalar = std::variant<std::monostate, bool, std::int64_t, std::uint64_t /* above the largest int64 */, double, std::string>;

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

// Throws model_format for text that is no JSON or deeper than kMaxJsonDepth. Offsets in errors count from `base`.
void parse_json(const std::string& file, const std::string& field, std::uint64_t base, std::string_view text, JsonEvents& events);

// config.json as flat entries: {"rope": {"factor": 2}} -> "rope.factor". Lists of one scalar type become one value; other lists,
// and lists of objects, are numbered ("rope.0.factor"). Keys that come twice are errors.
Metadata::Entries parse_config(const std::string& file, std::string_view text);

}  // namespace pumice::files
