// Reads safetensors folders whose matrices another library has packed. A scheme handles the tensors of one library. It replaces the tensors
// that make up a packed matrix (MODULE.qweight, MODULE.scales, ...) by one tensor, MODULE.weight, so that no other code needs to know how
// matrices are packed.
#pragma once

#include <string>
#include <vector>

#include "files/file.h"
#include "files/metadata.h"
#include "files/tensor_info.h"

namespace pumice::files::schemes {

// Replaces the packed tensors of a folder in `tensors`. `config` is the folder's config.json. `hf_quant_config` is its
// hf_quant_config.json, or empty if there is no such file; it is used only if config.json does not describe a packing. Returns the name of
// the library that packed the tensors (schemes.def), or "" if none did. Throws model_format, with the name of the tensor, if a tensor is
// missing or has another shape or dtype than the scheme needs. Throws unsupported_model for variants of a scheme that are not supported. Of
// the tensors' data, reads only the order of columns (g_idx) and single numbers; the rest is read later, with the rows.
std::string add_schemes(const Metadata& config, const Metadata& hf_quant_config, const std::vector<File>& files,
                        std::vector<TensorInfo>& tensors);

}  // namespace pumice::files::schemes
