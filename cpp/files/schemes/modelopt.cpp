// NVIDIA's ModelOpt: NVFP4, with activations of 4 bits (quant_algo NVFP4) or of 16 (W4A16_NVFP4). A matrix of R rows and C columns consists
// of
//   weight         U8 [R, C / 2]: two codes a byte
//   weight_scale   F8_E4M3 [R, C / 16]
//   weight_scale_2 F32, one number, which multiplies the scales
// Activations are not rounded: their scale (input_scale) and those of a cache of 8 bits (k_scale, v_scale) are not used. config.json says
// all this as quantization_config; folders from before have only hf_quant_config.json, where "ignore" is "exclude_modules".
// Source: torch/export (quant_utils.py, convert_hf_config.py) of nvidia-modelopt 0.47.
#include <algorithm>
#include <cctype>
#include <string>

#include "files/schemes/folder.h"
#include "files/schemes/fp4.h"
#include "files/schemes/patterns.h"

namespace pumice::files::schemes {
namespace {

// Returns a name in which * stands for any characters as an expression of ModuleList.
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

void check_settings(const PackedFolder& folder) {
  const std::string algo = folder.config().string(folder.key("quant_algo")).value_or("");
  if (algo != "NVFP4" && algo != "W4A16_NVFP4") folder.unsupported("quant_algo", "is ", quote(algo), "; NVFP4 and W4A16_NVFP4 are read");
  for (const char* key : {"group_size", "config_groups.group_0.weights.group_size"}) {
    if (const auto size = folder.config().integer(folder.key(key)); size.value_or(16) != 16)
      folder.unsupported(key, "is ", *size, "; 16 is read");
  }
}

}  // namespace

void add_modelopt(PackedFolder& folder) {
  check_settings(folder);
  const ModuleList excluded = excluded_modules(folder);
  for (const std::string& module : folder.modules({"k_scale", "v_scale"}))
    for (const char* unused : {"k_scale", "v_scale"}) folder.drop(folder.find(module, unused));
  for (const std::string& module : folder.modules({"weight_scale", "weight_scale_2"}, "U8")) {
    folder.drop(folder.find(module, "input_scale"));
    const TensorInfo &codes = folder.need(module, "weight", {"U8"}), &scales = folder.need(module, "weight_scale", {"F8_E4M3"}),
                     &factor = folder.need(module, "weight_scale_2", {"F32"});
    if (excluded.names(module) != ModuleList::By::none)
      folder.fail_tensor(codes, "is packed, and the list of modules that are not packed has ", module);
    if (const TensorInfo* before = folder.find(module, "pre_quant_scale"))
      folder.unsupported("quant_algo", "has ", before->name, ", which scales the inputs of a matrix and is not read");
    add_fp4_matrix(folder, {.module = module, .library = "ModelOpt", .codes = &codes, .scales = &scales, .factor = &factor});
  }
}

}  // namespace pumice::files::schemes
