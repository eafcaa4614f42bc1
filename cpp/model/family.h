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

// How the rows of several roles are ordered in a tensor that these roles share.
enum class Fused : std::uint8_t {
  no,
  qkv,             // queries, then keys, then values
  qkv_by_head,     // for each kv head: its query heads, its key head, its value head
  qvk_by_quarter,  // for each quarter of the heads: their queries, their values, their keys (CodeGen)
  q_gate_by_head,  // for each head: its query, its columns of OutputGate
  gate_up,         // gate, then up
  up_gate,         // up, then gate
  // Of latent attention:
  latent_q,     // for each head: its plain columns, its columns that rope turns; with LatentAttention::q_rank
  whole_q,      // the same without q_rank
  latent_down,  // the latent vector, then the key's columns that rope turns
  latent_up,    // for each head: what expands the latent vector to the plain columns of its key, and to its value
  // Of a recurrent mixer:
  scan_qkv,                // q, k, v
  scan_parts,              // gate, v, k, q, step (Mamba-2)
  scan_qkv_gate_by_head,   // for each head of keys: its q, its k, the values and the gates of its heads (Qwen3-Next)
  scan_beta_step_by_head,  // for each head of keys: the betas and the steps of its heads (Qwen3-Next)
  taps_qkv,                // the taps of q, k, v
  taps_vkq,                // the taps of v, k, q (Mamba-2)
  // Of each expert of a mixture:
  expert_gate_up,         // gate, then up
  expert_gate_up_by_row,  // for each hidden value: its row of gate, its row of up (gpt-oss)
  shared_gate_up,         // of the shared expert: gate, then up
};

// Which names of a tensor are whole: no ".weight" is appended. Their bias, if there is one, has the name with "_bias" appended.
enum class Bare : std::uint8_t { none, safetensors, both };

struct TensorName {
  Role role;
  // In `gguf` and `safetensors`, "{}" stands for the number of the layer, and ".weight" or ".bias" is appended. An empty name means that
  // such files do not have the tensor. Prefixes of safetensors names are left out. In names of a mixture's tensors, "{expert}" stands for
  // the number of the expert. Without it, one tensor has the matrices of all experts: [experts, rows, columns]. A name that ends with
  // "_blocks" is that of a tensor of 4-bit codes, and a tensor "_scales" beside it has their scales (MXFP4 of gpt-oss).
  std::string_view gguf;
  std::string_view safetensors;
  Fused fused = Fused::no;
  bool transposed = false;  // the safetensors tensor has one row per input (GPT-2's Conv1D)
  Bare bare = Bare::none;
  bool one_row = false;  // the tensor of a vector may also be a matrix of one row (ERNIE 4.5)
};

// A family's own name (`here`) for a key of config.json that most families call `usual`.
struct KeyName {
  std::string_view usual, here;
};

class Reader;

struct Family {
  std::string_view name;
  std::span<const std::string_view> gguf_names;   // values of general.architecture that select the family
  std::span<const std::string_view> model_types;  // values of model_type in config.json that select it
  std::span<const std::string_view> prefixes;     // of safetensors names, in the order in which they are tried
  std::span<const TensorName> names;              // a role may have several names; the first that the file has is used
  std::span<const TensorName> more_names;         // names for the roles that `names` does not have
  std::span<const KeyName> keys;
  void (*configure)(const Reader& read, Config& config);
  // Safetensors names of tensors that configure() reads, or of which it decides that no layer needs them.
  std::span<const std::string_view> read_by_configure = {};
  // Returns whether this file belongs to this family. Several families may have the same name in files (jina v2's config.json says "bert").
  // The file then belongs to the family whose claims() returns true or, if there is none, to the family without claims().
  bool (*claims)(const Reader& read) = nullptr;
  // The converter to GGUF sorts the rows of q and k for a rope that turns neighbouring columns (RopeDefaults::interleaved).
  bool pairs_in_gguf = false;
  bool tiled_in_gguf = false;  // the converter sorts the heads of a recurrence's values as Recurrent::tiled says
  // Fields of Config, as config_difference.h names them, that differ in GGUF files because the values of tensors have taken them over.
  std::span<const std::string_view> folded_in_gguf = {};
  // If the family is an assistant (a small model that guesses tokens, model/assistant.h): the family of the models that it guesses for.
  std::string_view assists = {};
};

// Each file defines its families in a namespace named after it, because several files may be compiled as one (CMakeLists.txt).
namespace families_in_files {
#define PUMICE_FAMILY(file, name) \
  namespace file {                \
  extern const Family name;       \
  }
#define PUMICE_ASSISTANT(file, name) PUMICE_FAMILY(file, name)
#include "model/families.def"
#undef PUMICE_FAMILY
#undef PUMICE_ASSISTANT
}  // namespace families_in_files

std::span<const Family* const> families();
const Family* find_family(std::string_view name_in_file, const Reader& read);
// Returns the assistant with this name in GGUF files or in config.json, or null. families() has no assistants.
const Family* find_assistant(std::string_view name_in_file, bool gguf);
std::string known_assistants();
std::string known_families();  // "llama, mistral, ..." in the order of families.def, for error messages

}  // namespace pumice::model
