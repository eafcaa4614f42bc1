// Reads the sizes of recurrent mixers (Recurrent). GGUF files have the same keys for all families. If a family's config.json has other
// names for the keys of read_ssd(), these names are in Family::keys.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// The defaults of a configuration class, for config.json. 0 means that there is no default.
struct ScanDefaults {
  std::int32_t heads = 0, key_heads = 0, key_dim = 0, value_dim = 0, taps = 4;
  // The number of columns of all value heads together. If config.json has "auto" or nothing for the number of columns of one head, it is
  // computed from `inner`. If `inner` is 0, the default for one head is `value_dim`.
  std::int32_t inner = 0;
};

// Returns a mixer of the gated delta rule. config.json has its sizes in linear_num_value_heads, linear_num_key_heads, linear_key_head_dim,
// linear_value_head_dim and linear_conv_kernel_dim. The mixer's norm precedes the gate and has the model's eps. All heads share the weights
// of the norm.
Recurrent read_delta(const Reader& read, const Config& c, const ScanDefaults& defaults);

// Returns a mixer of Mamba-2. config.json has its settings in mamba_n_heads, mamba_n_groups, mamba_d_state, mamba_d_head, mamba_d_conv,
// mamba_conv_bias, mamba_proj_bias and hidden_act. The mixer's norm follows the gate, has the model's eps, and normalises each group of
// columns separately. Throws ErrorKind::unsupported_model for a time_step_limit, because transformers applies this limit when it computes
// whole texts but not when it computes single steps.
Recurrent read_ssd(const Reader& read, const Config& c, const ScanDefaults& defaults);

}  // namespace pumice::model
