// Floats of 8 bits for FBGEMM's kernels, as transformers' "fbgemm_fp8" and Meta write them. A matrix of R rows and C columns consists of
//   weight       F8_E4M3 [R, C]
//   weight_scale F32 [R, 1]: a weight is scale * value
// A stack of E experts of Llama 4 is transposed, and consists of
//   gate_up_proj       F8_E4M3 [E, C, R]
//   gate_up_proj_scale F32 [E, 1, R] (the scales of down_proj are [E, R, 1]): R scales for each expert
// Activations are not rounded: the bound of their scales (activation_scale_ub in config.json, input_scale_ub) is not used.
// Source: integrations/fbgemm_fp8.py of transformers 5.24.
#include <string>

#include "files/schemes/folder.h"
#include "files/schemes/fp8.h"

namespace pumice::files::schemes {

void add_fbgemm(PackedFolder& folder) {
  const Fp8Library matrices{.name = "FBGEMM", .scales = {"weight_scale"}, .unused = {"input_scale", "input_scale_ub"}};
  const Fp8Library stacks{.name = "FBGEMM", .scales = {"scale"}, .unused = {}};
  for (const std::string& module : folder.modules({"weight_scale"}, "F8_E4M3")) add_fp8_module(folder, module, matrices);
  for (const std::string& stack : folder.stacks({"_scale"}, {"F8_E4M3"})) add_fp8_stack(folder, stack, stacks);
}

}  // namespace pumice::files::schemes
