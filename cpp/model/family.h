// A family of models: the names of its tensors, the names of its configuration's keys, and a function that fills Config. Each family is
// defined in a file in families/ and listed in families.def.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/roles.h"

namespace pumice::model {

// Says how several roles share one tensor. The comments list the rows of the tensor in order.
enum class Fused : std::uint8_t {
  no,
  qkv,             // queries, then keys, then values
  qkv_by_head,     // for each kv head: the queries that use it, its key, its value
  qvk_by_quarter,  // for each quarter of the heads: the heads' queries, their values, their keys (CodeGen)
  q_gate_by_head,  // for each head: its query, its gate (OutputGate)
  gate_up,         // gate, then up
  up_gate,         // up, then gate
  // Tensors of latent attention:
  // For each head: rows for the query's columns without rope, then rows for those with rope. Used if LatentAttention::q_rank > 0.
  latent_q,
  whole_q,      // as latent_q; used if LatentAttention::q_rank is 0
  latent_down,  // rows for the latent vector, then rows for the columns of the key that rope rotates
  latent_up,    // for each head: rows for the key's columns without rope, then rows for the value
  // Tensors of a recurrent mixer:
  scan_qkv,                // q, then k, then v
  scan_parts,              // gate, then v, then k, then q, then step (Mamba-2)
  scan_qkv_gate_by_head,   // for each key head: its q, its k, the values and the gates of its value heads (Qwen3-Next)
  scan_beta_step_by_head,  // for each key head: the betas and the steps of its value heads (Qwen3-Next)
  taps_qkv,                // taps of q, then of k, then of v
  taps_vkq,                // taps of v, then of k, then of q (Mamba-2)
  // Tensors of the experts of a mixture:
  expert_gate_up,         // rows of gate, then rows of up
  expert_gate_up_by_row,  // for each hidden value: one row of gate, one row of up (gpt-oss)
  shared_gate_up,         // in the shared expert: gate, then up
};

// Says in which kinds of files a TensorName is the tensor's whole name, without ".weight" at its end. A bias then has the name with "_bias"
// appended.
enum class Bare : std::uint8_t { none, safetensors, both };

struct TensorName {
  Role role;
  // The tensor's name in GGUF files and in safetensors files. Empty if files of this kind do not have the tensor. "{}" stands for the
  // number of the layer, and ".weight" or ".bias" is appended. Safetensors names lack the prefix (Family::prefixes). "{expert}" stands for
  // the number of the expert. If the name of an expert's matrix lacks "{expert}", one tensor [experts, rows, columns] has the matrices of
  // all experts. A name that ends with "_blocks" belongs to the 4-bit codes of MXFP4 (gpt-oss). Their scales are in a tensor "..._scales".
  std::string_view gguf;
  std::string_view safetensors;
  Fused fused = Fused::no;
  // True if the safetensors file stores the matrix transposed, with one row per input (GPT-2's Conv1D).
  bool transposed = false;
  Bare bare = Bare::none;
  bool one_row = false;  // true: the vector's tensor may also be a matrix of one row (ERNIE 4.5)
};

// A config.json key that most families call `usual` and this family calls `here`.
struct KeyName {
  std::string_view usual, here;
};

class Reader;

struct Family {
  std::string_view name;
  std::span<const std::string_view> gguf_names;   // values of general.architecture that select the family
  std::span<const std::string_view> model_types;  // values of model_type in config.json that select the family
  std::span<const std::string_view> prefixes;     // prefixes of safetensors names, in the order in which they are tried
  // The tensor names. A role may have several names, and the first one that the file has is used.
  std::span<const TensorName> names;
  std::span<const TensorName> more_names;  // names for the roles that have none in `names`
  std::span<const KeyName> keys;
  void (*configure)(const Reader& read, Config& config);
  // Safetensors names of tensors that have no role. A file may have them, because configure() reads them itself or knows that no layer
  // needs them.
  std::span<const std::string_view> read_by_configure = {};
  // Returns true if this file belongs to this family. Needed if several families have the same name in files (jina v2's config.json says
  // "bert"). If no family's claims() returns true, the file belongs to the family without claims().
  bool (*claims)(const Reader& read) = nullptr;
  // True if llama.cpp's converter reorders the rows of q and k, so that rope rotates pairs of neighbouring columns
  // (RopeDefaults::interleaved).
  bool pairs_in_gguf = false;
  // True if llama.cpp's converter reorders the value heads of a recurrence to the order of DeltaRule::tiled.
  bool tiled_in_gguf = false;
  // Names of fields of Config (Difference::field) that differ between a folder and its GGUF file, because the converter multiplied tensors
  // by the values of these fields.
  std::span<const std::string_view> folded_in_gguf = {};
  // For an assistant, which drafts tokens for another model (model/assistant.h): the name of the other model's family. Otherwise empty.
  std::string_view assists = {};
};

// Each file of families/ defines its families in a namespace named after the file, because several files may be compiled as one
// (CMakeLists.txt).
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
// Returns the assistant with this name in GGUF files or in config.json, or null if there is none. families() does not list assistants.
const Family* find_assistant(std::string_view name_in_file, bool gguf);
std::string known_assistants();
std::string known_families();  // "llama, mistral, ..." in the order of families.def, for error messages

}  // namespace pumice::model
