// Safetensors folders whose matrices another library packed. Each scheme handles the tensors of one library. It replaces the tensors that a
// packed matrix consists of (MODULE.qweight, MODULE.scales, ...) by one tensor, MODULE.weight, so that no other code needs to know how
// matrices are packed.
#pragma once

#include <string>
#include <vector>

#include "files/file.h"
#include "files/metadata.h"
#include "files/tensor_info.h"

namespace pumice::files::schemes {

// Replaces the packed tensors of a folder. `config` has its config.json. `hf_quant_config` has its hf_quant_config.json, or is empty if
// there is none; it is used only if config.json does not describe a packing. Returns the name of the library in schemes.def that packed
// tensors of the folder, or "" if no tensor is packed by one of these libraries. Throws model_format, with the name of the tensor, if a
// tensor is missing or has another shape or dtype than the scheme needs, and unsupported_model for variants of a scheme that are not
// supported. This reads only the order of columns (g_idx) and single numbers from tensors. The rest is read when the rows are made.
std::string add_schemes(const Metadata& config, const Metadata& hf_quant_config, const std::vector<File>& files,
                        std::vector<TensorInfo>& tensors);

}  // namespace pumice::files::schemes
