// A family of models: the names of its tensors and of its configuration's keys, and a function that fills Config. Each family is defined in
// a file in families/ and listed in families.def.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/roles.h"

namespace pumice::model {

// How the rows of several roles are ordered in a tensor that they share.
enum class Fused : std::uint8_t {
  no,
  qkv,          // queries, then keys, then values
  qkv_by_head,  // for each kv head: its query heads, its key head, its value head
  gate_up,      // gate, then up
  up_gate,      // up, then gate
};

struct TensorName {
  Role role;
  std::string_view gguf;         // "{}" is the layer's number; ".weight" or ".bias" is appended. Empty: none in GGUF
  std::string_view safetensors;  // without the prefix
  Fused fused = Fused::no;
  bool transposed = false;  // in safetensors: stored with one row per input (GPT-2's Conv1D)
  bool bare = false;        // in safetensors: the name has no ".weight", and there is no bias
};

// Another name for a key of config.json.
struct KeyName {
  std::string_view usual, here;
};

class Reader;

struct Family {
  std::string_view name;
  std::span<const std::string_view> gguf_names;   // values of general.architecture
  std::span<const std::string_view> model_types;  // values of model_type in config.json
  std::span<const std::string_view> prefixes;     // of safetensors names, in the order in which they are tried
  std::span<const TensorName> names;              // a role may have several; the first one that the file has is used
  std::span<const TensorName> more_names;         // names for roles that are not in `names`
  std::span<const KeyName> keys;
  void (*configure)(const Reader& read, Config& config);
  std::span<const std::string_view> read_by_configure = {};  // safetensors names of tensors that configure() reads
  // Returns whether this file belongs to this family. Needed if several families share a name (jina v2 says "bert"): a file that no
  // claims() accepts belongs to the family without one.
  bool (*claims)(const Reader& read) = nullptr;
};

// Each file defines its families in a namespace named after it, because several files may be compiled as one (CMakeLists.txt).
namespace families_in_files {
#define PUMICE_FAMILY(file, name) \
  namespace file {                \
  extern const Family name;       \
  }
#include "model/families.def"
#undef PUMICE_FAMILY
}  // namespace families_in_files

std::span<const Family* const> families();
const Family* find_family(std::string_view name_in_file, const Reader& read);
std::string known_families();  // "bert, gemma3, llama, mistral", for error messages

}  // namespace pumice::model
