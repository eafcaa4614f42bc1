// Safetensors folders whose matrices another library packed. A scheme knows the tensors of one such library. It puts one tensor,
// MODULE.weight, in the place of those that a packed matrix consists of (MODULE.qweight, MODULE.scales, ...), so that no other code sees
// these.
#pragma once

#include <string>
#include <vector>

#include "files/file.h"
#include "files/metadata.h"
#include "files/tensor_info.h"

namespace pumice::files::schemes {

// Replaces the packed tensors of a folder. `config` is its config.json, `hf_quant_config` its hf_quant_config.json, which counts where
// config.json says nothing of a packing; it is empty if there is none. Returns the name of the scheme, or "" if no tensor is packed as a
// library that is known here does it. Throws model_format with the name of a tensor that is missing, or has another shape or dtype than its
// scheme says, and unsupported_model for kinds of a scheme that are not read. Only these two files, the shapes, the order of columns
// (g_idx) and single numbers are looked at; the other tensors are read with the rows.
std::string add_schemes(const Metadata& config, const Metadata& hf_quant_config, const std::vector<File>& files,
                        std::vector<TensorInfo>& tensors);

}  // namespace pumice::files::schemes
