// A layer as data: attention, a feed-forward network, where each is normalised, and how the two are joined. Layers of one model may differ.
#pragma once

#include <cstdint>

#include "core/ops.h"

namespace pumice::model {

// Where a branch is normalised: what it reads (Llama), what it gives before that is added (Gemma 2, OLMo 2), and the sum (BERT).
struct Norms {
  bool before = true, branch = false, sum = false;
  bool replace = false;  // what `before` gives takes the place of the row: the branch is added to that (a switch of BLOOM)
  bool twice = false;    // with `sum`: the row is added to the normalised sum once more, and that is normalised too (jina v2 for code)
};

// Of queries and keys: not at all, each head with weights that all heads share (Qwen 3), or all heads as one vector (OLMo 2).
enum class QkNorm : std::uint8_t { none, head, whole };

// What a score gets for the distance of its query and key: nothing, ALiBi's slope (BLOOM, MPT), a learned number (T5, MPNet), or what
// query and key make of a learned row (DeBERTa).
enum class PositionBias : std::uint8_t { none, alibi, buckets, places };

struct Attention {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  std::int32_t window = 0;  // 0: all positions; otherwise as in Attend
  std::int32_t rope = -1;   // index into Config::ropes; -1: queries and keys do not turn
  float scale = 0, softcap = 0;
  QkNorm qk_norm = QkNorm::none;
  bool norm_after_rope = false;  // of queries and keys (Hunyuan)
  bool value_norm = false;       // of each head of values, without weights (Gemma 4)
  bool value_is_key = false;     // no matrix for values: they are what that of keys gives, before norm and rope
  std::int32_t kv_from = -1;     // the layer before whose keys and values it reads, having none of its own (Gemma 4); -1: its own
  float temperature = 0;         // of queries, as in Rope
  std::int32_t temperature_length = 0;
  PositionBias position_bias = PositionBias::none;
  Norms norms;
  bool qkv_bias = false, out_bias = false;  // must be in the file; others are taken when they are there
  std::int32_t q_width() const { return heads * head_dim; }
  std::int32_t kv_width() const { return kv_heads * head_dim; }
};

struct FeedForward {
  std::int32_t width = 0;
  bool gated = true;
  Activation activation = Activation::silu;
  float alpha_p = 0, alpha_n = 0;  // of xielu
  Norms norms;
  bool bias = false;  // must be in the file
};

struct Layer {
  Attention attention;
  FeedForward feed_forward;
  // Both branches read the layer's input, and both are added to it. A feed-forward network without a norm of its own then reads what
  // attention's gave.
  bool parallel = false;
  bool windowed = false;   // of the kind that has a window in this family, which may be wider than the context
  float branch_scale = 1;  // of what each branch adds (Granite, MiniCPM)
  bool scaled = false;     // in the end all of the row is multiplied by a number that the layer has learned (Gemma 4)
};

}  // namespace pumice::model
