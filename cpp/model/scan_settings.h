// Reads the sizes of recurrent mixers (Recurrent). GGUF files have the same keys for all of them. A family whose config.json has other
// names for the keys of read_ssd() says so in Family::keys.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// The defaults of a configuration class, for config.json. 0: there is none.
struct ScanDefaults {
  std::int32_t heads = 0, key_heads = 0, key_dim = 0, value_dim = 0, taps = 4;
  // The width of all heads of values together, for files that say "auto" or nothing about the width of one. 0: files must say it.
  std::int32_t inner = 0;
};

// Returns a gated delta rule: the keys linear_num_value_heads, linear_num_key_heads, linear_key_head_dim, linear_value_head_dim and
// linear_conv_kernel_dim. Its norm has the model's eps and is before the gate, and each head has the same weights.
Recurrent read_delta(const Reader& read, const Config& c, const ScanDefaults& defaults);

// Returns a mixer of Mamba-2: the keys mamba_n_heads, mamba_n_groups, mamba_d_state, mamba_d_head, mamba_d_conv, mamba_conv_bias,
// mamba_proj_bias and hidden_act. Its norm has the model's eps, is after the gate, and takes each group of columns by itself. Throws
// ErrorKind::unsupported_model for a time_step_limit, which transformers applies to whole texts and not to single steps.
Recurrent read_ssd(const Reader& read, const Config& c, const ScanDefaults& defaults);

}  // namespace pumice::model
