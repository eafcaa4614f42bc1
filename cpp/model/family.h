// What one family of models is: the names of its tensors and of its configuration's keys, and one function that fills Config. Each has a
// file in families/ and a line in families.def.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/roles.h"

namespace pumice::model {

// The rows of a role in a tensor that several roles share.
enum class Fused : std::uint8_t {
  no,
  qkv,          // queries, then keys, then values
  qkv_by_head,  // for each head of keys in turn: its heads of queries, its keys, its values
  gate_up,      // gate, then up
  up_gate,      // up, then gate
};

struct TensorName {
  Role role;
  std::string_view gguf;         // "{}" is the layer; ".weight" and ".bias" follow. Empty: no such name in this kind of file
  std::string_view safetensors;  // after the prefix
  Fused fused = Fused::no;
  bool transposed = false;  // in safetensors: a row per input (GPT-2's Conv1D)
  bool bare = false;        // in safetensors: without ".weight", and without a bias
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
  std::span<const std::string_view> prefixes;     // of safetensors names, tried in order
  std::span<const TensorName> names;              // of several names of a role, the first that the file has counts
  std::span<const TensorName> more_names;         // for roles that `names` does not have
  std::span<const KeyName> keys;
  void (*configure)(const Reader& read, Config& config);
  std::span<const std::string_view> read_by_configure = {};  // safetensors names of tensors that configure() reads
  // Does this file belong to this family? Needed where families share a name (jina v2 says "bert"). A family without claims() gets the
  // files that no other one claims.
  bool (*claims)(const Reader& read) = nullptr;
};

// Each is defined in its file, in a namespace of the file's name: several files may be compiled as one (CMakeLists.txt).
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
std::string known_families();  // "bert, gemma3, llama, mistral": for messages

}  // namespace pumice::model
