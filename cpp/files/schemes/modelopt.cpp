// NVIDIA's ModelOpt. A matrix of R rows and C columns in NVFP4, with activations of 4 bits (quant_algo NVFP4) or of 16 (W4A16_NVFP4),
// consists of
//   weight         U8 [R, C / 2]: two codes a byte
//   weight_scale   F8_E4M3 [R, C / 16]
//   weight_scale_2 F32, one number, which multiplies the scales
// A matrix in floats of 8 bits consists of
//   weight       F8_E4M3 [R, C]
//   weight_scale F32: one number (FP8), or [R] (FP8_PER_CHANNEL_PER_TOKEN)
// The E experts of a layer of Llama 4 or gpt-oss are a stack. Its tensors are called experts.gate_up_proj,
// experts.gate_up_proj_weight_scale and so on, and are transposed: [E, C / 2, R] and [E, C / 16, R] in NVFP4, [E, C, R] in floats of 8
// bits. If quant_algo is MIXED_PRECISION, quantized_layers has the quant_algo of each module. Activations and caches are not rounded, so
// the scales of activations (input_scale) and of a cache of 8 bits (k_scale, v_scale) are not used. Newer folders have the settings in
// config.json under quantization_config. Older folders have them only in hf_quant_config.json, where "ignore" is called "exclude_modules".
// Source: torch/export (unified_export_hf.py, quant_utils.py, convert_hf_config.py) of nvidia-modelopt 0.47.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <string>

#include "files/schemes/folder.h"
#include "files/schemes/fp4.h"
#include "files/schemes/fp8.h"
#include "files/schemes/patterns.h"

namespace pumice::files::schemes {
namespace {

// Returns the regular expression, as ModuleList takes it, for a name in which * stands for any characters.
std::string expression_of(const std::string& name) {
  std::string expression = "re:";
  for (const char c : name) {
    if (c == '*')
      expression += ".*";
    else if (c == '_' || std::isalnum(static_cast<unsigned char>(c)))
      expression += c;
    else
      expression += str("[", c, "]");
  }
  return expression + "$";
}

ModuleList excluded_modules(const PackedFolder& folder) {
  std::vector<std::string> expressions;
  for (const char* key : {"ignore", "exclude_modules"})
    for (const std::string& name : folder.list(key)) expressions.push_back(expression_of(name));
  return ModuleList(expressions);
}

constexpr char kMixed[] = "MIXED_PRECISION";
struct Algo {
  std::string_view name;
  bool fp8;  // true for floats of 8 bits, false for NVFP4
};
constexpr Algo kAlgos[] = {{"NVFP4", false}, {"W4A16_NVFP4", false}, {"FP8", true}, {"FP8_PER_CHANNEL_PER_TOKEN", true}};

// Returns whether the quant_algo under this key is one for floats of 8 bits. Throws if the quant_algo is not in kAlgos.
bool says_fp8(const PackedFolder& folder, const std::string& key) {
  const std::string said = folder.config().string(folder.key(key)).value_or("");
  const auto found = std::ranges::find(kAlgos, said, &Algo::name);
  if (found != std::end(kAlgos)) return found->fp8;
  std::string read;
  for (const Algo& algo : kAlgos) read += str(algo.name, ", ");
  folder.unsupported(key, "is ", quote(said), "; ", read, "and ", kMixed, " of these are read");
}

// The settings of a folder. Either quant_algo is the same for all modules, or quantized_layers has the quant_algo of each module.
class ModelOptSettings {
 public:
  explicit ModelOptSettings(const PackedFolder& folder)
      : folder_(folder), mixed_(folder.config().string(folder.key("quant_algo")) == kMixed), excluded_(excluded_modules(folder)) {
    if (!mixed_) fp8_ = says_fp8(folder, "quant_algo");
    for (const char* key : {"group_size", "config_groups.group_0.weights.group_size"}) check_group(key);
  }

  // Returns whether a module or a stack is packed in floats of 8 bits. `packed` is one of its tensors.
  bool is_fp8(const std::string& module, const TensorInfo& packed) const {
    if (excluded_.names(module) != ModuleList::By::none)
      folder_.fail_tensor(packed, "is packed, and the list of modules that are not packed has ", module);
    if (!mixed_) return fp8_;
    // For a stack, quantized_layers has the name of the module that the stack is a member of.
    for (const std::string& layer : {module, module.substr(0, module.rfind('.'))}) {
      const std::string key = str("quantized_layers.", layer, ".quant_algo");
      if (!folder_.config().has(folder_.key(key))) continue;
      const bool fp8 = says_fp8(folder_, key);
      check_group(str("quantized_layers.", layer, ".group_size"));
      return fp8;
    }
    folder_.fail_tensor(packed, "is packed, and ", folder_.key("quantized_layers"), " does not have ", module);
  }

 private:
  void check_group(const std::string& key) const {
    if (const auto size = folder_.config().integer(folder_.key(key)); size.value_or(16) != 16)
      folder_.unsupported(key, "is ", *size, "; 16 is read");
  }

  const PackedFolder& folder_;
  bool mixed_, fp8_ = false;
  ModuleList excluded_;
};

// Adds a matrix or a stack in NVFP4. `joint` comes between the module's name and the names of scales: "." for a matrix, "_" for a stack.
void add_nvfp4(PackedFolder& folder, const std::string& module, const std::string& codes_name, const char* joint) {
  folder.drop(folder.find(str(module, joint, "input_scale")));
  const TensorInfo &codes = folder.need(codes_name, {"U8"}), &scales = folder.need(str(module, joint, "weight_scale"), {"F8_E4M3"}),
                   &factor = folder.need(str(module, joint, "weight_scale_2"), {"F32"});
  add_fp4_matrix(
      folder,
      {.module = module, .library = "ModelOpt", .codes = &codes, .scales = &scales, .factor = &factor, .stack = codes_name == module});
}

}  // namespace

void add_modelopt(PackedFolder& folder) {
  const ModelOptSettings settings(folder);
  for (const std::string& module : folder.modules({"k_scale", "v_scale"}))
    for (const char* unused : {"k_scale", "v_scale"}) folder.drop(folder.find(module, unused));
  const Fp8Library fp8{.name = "ModelOpt", .scales = {"weight_scale"}, .unused = {"input_scale"}};
  std::set<std::string> modules = folder.modules({"weight_scale", "weight_scale_2"}, "U8");
  modules.merge(folder.modules({}, "F8_E4M3"));
  for (const std::string& module : modules) {
    const TensorInfo& weight = folder.need(module, "weight", {"U8", "F8_E4M3"});
    if (const TensorInfo* before = folder.find(module, "pre_quant_scale"))
      folder.unsupported("quant_algo", "has ", before->name, ", which scales the inputs of a matrix and is not read");
    settings.is_fp8(module, weight) ? add_fp8_module(folder, module, fp8) : add_nvfp4(folder, module, weight.name, ".");
  }
  for (const std::string& stack : folder.stacks({"_weight_scale_2", "_weight_scale", "_input_scale"}, {"U8", "F8_E4M3"})) {
    const TensorInfo& weight = folder.need(stack, {"U8", "F8_E4M3"});
    settings.is_fp8(stack, weight) ? add_fp8_stack(folder, stack, fp8) : add_nvfp4(folder, stack, stack, "_");
  }
}

}  // namespace pumice::files::schemes
