"""The names of tensors: in a safetensors folder, and in the GGUF file that llama.cpp's converter writes from it. Both lack ".weight" and
".bias". {} is the number of a layer. A "+" joins the names of the two tensors into which the rows of one tensor are split, half and half.

Source: gguf-py's tensor_mapping.py, and the module names of transformers.
"""

from __future__ import annotations

LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    "score": "cls.output",
}
GEMMA = LLAMA | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
GEMMA4 = GEMMA | {
    "model.layers.{}.layer_scalar": "blk.{}.layer_output_scale",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "model.layers.{}.per_layer_input_gate": "blk.{}.inp_gate",
    "model.layers.{}.per_layer_projection": "blk.{}.proj",
    "model.layers.{}.post_per_layer_input_norm": "blk.{}.post_norm",
}
GEMMA4 |= {
    "model.layers.{}.router.proj": "blk.{}.ffn_gate_inp",
    "model.layers.{}.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.router.expert": "blk.{}.ffn_down_exps",
    "model.layers.{}.pre_feedforward_layernorm_2": "blk.{}.pre_ffw_norm_2",
    "model.layers.{}.post_feedforward_layernorm_1": "blk.{}.post_ffw_norm_1",
    "model.layers.{}.post_feedforward_layernorm_2": "blk.{}.post_ffw_norm_2",
    "model.layers.{}.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps",
    "model.layers.{}.experts.down_proj": "blk.{}.ffn_down_exps",
}
GPT2 = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{}.ln_1": "blk.{}.attn_norm",
    "transformer.h.{}.attn.c_attn": "blk.{}.attn_qkv",
    "transformer.h.{}.attn.c_proj": "blk.{}.attn_output",
    "transformer.h.{}.ln_2": "blk.{}.ffn_norm",
    "transformer.h.{}.mlp.c_fc": "blk.{}.ffn_up",
    "transformer.h.{}.mlp.c_proj": "blk.{}.ffn_down",
}
NEOX = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "gpt_neox.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "gpt_neox.layers.{}.attention.query_key_value": "blk.{}.attn_qkv",
    "gpt_neox.layers.{}.attention.dense": "blk.{}.attn_output",
    "gpt_neox.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "gpt_neox.layers.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
    "gpt_neox.layers.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
}
BLOOM = {
    "transformer.word_embeddings": "token_embd",
    "transformer.word_embeddings_layernorm": "token_embd_norm",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{}.input_layernorm": "blk.{}.attn_norm",
    "transformer.h.{}.self_attention.query_key_value": "blk.{}.attn_qkv",
    "transformer.h.{}.self_attention.dense": "blk.{}.attn_output",
    "transformer.h.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "transformer.h.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
    "transformer.h.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
}
FALCON = BLOOM | {"transformer.h.{}.ln_attn": "blk.{}.attn_norm_2", "transformer.h.{}.ln_mlp": "blk.{}.attn_norm"}
MPT = {
    "transformer.wte": "token_embd",
    "transformer.norm_f": "output_norm",
    "lm_head": "output",
    "transformer.blocks.{}.norm_1": "blk.{}.attn_norm",
    "transformer.blocks.{}.attn.Wqkv": "blk.{}.attn_qkv",
    "transformer.blocks.{}.attn.out_proj": "blk.{}.attn_output",
    "transformer.blocks.{}.norm_2": "blk.{}.ffn_norm",
    "transformer.blocks.{}.ffn.up_proj": "blk.{}.ffn_up",
    "transformer.blocks.{}.ffn.down_proj": "blk.{}.ffn_down",
}
INTERNLM2 = {
    "model.tok_embeddings": "token_embd",
    "model.norm": "output_norm",
    "output": "output",
    "model.layers.{}.attention_norm": "blk.{}.attn_norm",
    "model.layers.{}.attention.wqkv": "blk.{}.attn_qkv",
    "model.layers.{}.attention.wo": "blk.{}.attn_output",
    "model.layers.{}.ffn_norm": "blk.{}.ffn_norm",
    "model.layers.{}.feed_forward.w1": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.w3": "blk.{}.ffn_up",
    "model.layers.{}.feed_forward.w2": "blk.{}.ffn_down",
}
EXAONE = {
    "transformer.wte": "token_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{}.ln_1": "blk.{}.attn_norm",
    "transformer.h.{}.attn.attention.q_proj": "blk.{}.attn_q",
    "transformer.h.{}.attn.attention.k_proj": "blk.{}.attn_k",
    "transformer.h.{}.attn.attention.v_proj": "blk.{}.attn_v",
    "transformer.h.{}.attn.attention.out_proj": "blk.{}.attn_output",
    "transformer.h.{}.ln_2": "blk.{}.ffn_norm",
    "transformer.h.{}.mlp.c_fc_0": "blk.{}.ffn_gate",
    "transformer.h.{}.mlp.c_fc_1": "blk.{}.ffn_up",
    "transformer.h.{}.mlp.c_proj": "blk.{}.ffn_down",
}
LLAMA4 = LLAMA | {
    "model.layers.{}.feed_forward.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.feed_forward.down_proj": "blk.{}.ffn_down",
    "model.layers.{}.feed_forward.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.feed_forward.experts.gate_up_proj": "blk.{}.ffn_gate_exps+blk.{}.ffn_up_exps",
    "model.layers.{}.feed_forward.experts.down_proj": "blk.{}.ffn_down_exps",
    "model.layers.{}.feed_forward.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
    "model.layers.{}.feed_forward.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
    "model.layers.{}.feed_forward.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
}
APERTUS = LLAMA | {
    "model.layers.{}.attention_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.feedforward_layernorm": "blk.{}.ffn_norm",
}
HUNYUAN = LLAMA | {
    "model.layers.{}.self_attn.query_layernorm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.key_layernorm": "blk.{}.attn_k_norm",
}
BRANCH_NORMS = {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
PHI2 = LLAMA | {
    "model.layers.{}.self_attn.dense": "blk.{}.attn_output",
    "model.layers.{}.mlp.fc1": "blk.{}.ffn_up",
    "model.layers.{}.mlp.fc2": "blk.{}.ffn_down",
    "model.final_layernorm": "output_norm",
}
GATE_UP = {"model.layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up"}  # the rows of gate, then those of up
PHI3 = LLAMA | GATE_UP | {"model.layers.{}.self_attn.qkv_proj": "blk.{}.attn_qkv"}
GLM4 = (
    LLAMA
    | GATE_UP
    | {
        "model.layers.{}.post_self_attn_layernorm": "blk.{}.post_attention_norm",
        "model.layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
    }
)
BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer.{}.attention.self.query": "blk.{}.attn_q",
    "encoder.layer.{}.attention.self.key": "blk.{}.attn_k",
    "encoder.layer.{}.attention.self.value": "blk.{}.attn_v",
    "encoder.layer.{}.attention.output.dense": "blk.{}.attn_output",
    "encoder.layer.{}.attention.output.LayerNorm": "blk.{}.attn_output_norm",
    "encoder.layer.{}.intermediate.dense": "blk.{}.ffn_up",
    "encoder.layer.{}.output.dense": "blk.{}.ffn_down",
    "encoder.layer.{}.output.LayerNorm": "blk.{}.layer_output_norm",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}
DISTILBERT = BERT | {
    "transformer.layer.{}.attention.q_lin": "blk.{}.attn_q",
    "transformer.layer.{}.attention.k_lin": "blk.{}.attn_k",
    "transformer.layer.{}.attention.v_lin": "blk.{}.attn_v",
    "transformer.layer.{}.attention.out_lin": "blk.{}.attn_output",
    "transformer.layer.{}.sa_layer_norm": "blk.{}.attn_output_norm",
    "transformer.layer.{}.ffn.lin1": "blk.{}.ffn_up",
    "transformer.layer.{}.ffn.lin2": "blk.{}.ffn_down",
    "transformer.layer.{}.output_layer_norm": "blk.{}.layer_output_norm",
    "pre_classifier": "cls",
    "classifier": "cls.output",
}
T5 = {
    "shared": "token_embd",
    "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias": "enc.blk.{}.attn_rel_b",
    "encoder.block.{}.layer.0.layer_norm": "enc.blk.{}.attn_norm",
    "encoder.block.{}.layer.0.SelfAttention.q": "enc.blk.{}.attn_q",
    "encoder.block.{}.layer.0.SelfAttention.k": "enc.blk.{}.attn_k",
    "encoder.block.{}.layer.0.SelfAttention.v": "enc.blk.{}.attn_v",
    "encoder.block.{}.layer.0.SelfAttention.o": "enc.blk.{}.attn_o",
    "encoder.block.{}.layer.1.layer_norm": "enc.blk.{}.ffn_norm",
    "encoder.block.{}.layer.1.DenseReluDense.wi": "enc.blk.{}.ffn_up",
    "encoder.block.{}.layer.1.DenseReluDense.wi_0": "enc.blk.{}.ffn_gate",
    "encoder.block.{}.layer.1.DenseReluDense.wi_1": "enc.blk.{}.ffn_up",
    "encoder.block.{}.layer.1.DenseReluDense.wo": "enc.blk.{}.ffn_down",
    "encoder.final_layer_norm": "enc.output_norm",
}
NOMIC = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm",
    "encoder.layers.{}.attn.Wqkv": "blk.{}.attn_qkv",
    "encoder.layers.{}.attn.out_proj": "blk.{}.attn_output",
    "encoder.layers.{}.norm1": "blk.{}.attn_output_norm",
    "encoder.layers.{}.mlp.fc11": "blk.{}.ffn_up",
    "encoder.layers.{}.mlp.fc12": "blk.{}.ffn_gate",
    "encoder.layers.{}.mlp.fc2": "blk.{}.ffn_down",
    "encoder.layers.{}.norm2": "blk.{}.layer_output_norm",
    "classifier": "cls.output",
}
NOMIC_MOE = NOMIC | {
    "encoder.layers.{}.mlp.fc1": "blk.{}.ffn_up",
    "encoder.layers.{}.mlp.router.layer": "blk.{}.ffn_gate_inp",
    "encoder.layers.{}.mlp.experts.mlp.w1": "blk.{}.ffn_up_exps",
    "encoder.layers.{}.mlp.experts.mlp.w2": "blk.{}.ffn_down_exps",
}
JINA3 = NOMIC | {
    "encoder.layers.{}.mixer.Wqkv": "blk.{}.attn_qkv",
    "encoder.layers.{}.mixer.out_proj": "blk.{}.attn_output",
    "encoder.layers.{}.mlp.fc1": "blk.{}.ffn_up",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}
JINA2 = BERT | {
    "encoder.layer.{}.attention.self.layer_norm_q": "blk.{}.attn_q_norm",
    "encoder.layer.{}.attention.self.layer_norm_k": "blk.{}.attn_k_norm",
    "encoder.layer.{}.layer_norm_1": "blk.{}.attn_norm_2",
    "encoder.layer.{}.layer_norm_2": "blk.{}.layer_output_norm",
    "encoder.layer.{}.mlp.layernorm": "blk.{}.layer_output_norm",
    "encoder.layer.{}.mlp.gated_layers": "blk.{}.ffn_up",
    "encoder.layer.{}.mlp.up_gated_layer": "blk.{}.ffn_up",
    "encoder.layer.{}.mlp.wo": "blk.{}.ffn_down",
    "encoder.layer.{}.mlp.down_layer": "blk.{}.ffn_down",
}
MODERN = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "layers.{}.attn_norm": "blk.{}.attn_norm",
    "layers.{}.attn.Wqkv": "blk.{}.attn_qkv",
    "layers.{}.attn.Wo": "blk.{}.attn_output",
    "layers.{}.mlp_norm": "blk.{}.ffn_norm",
    "layers.{}.mlp.Wi": "blk.{}.ffn_up",
    "layers.{}.mlp.Wo": "blk.{}.ffn_down",
    "final_norm": "output_norm",
    "head.dense": "cls",
    "head.norm": "cls.norm",
    "classifier": "cls.output",
}
LFM2 = LLAMA | {
    "model.embedding_norm": "token_embd_norm",
    "model.layers.{}.operator_norm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_layernorm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_layernorm": "blk.{}.attn_k_norm",
    "model.layers.{}.self_attn.out_proj": "blk.{}.attn_output",
    "model.layers.{}.conv.in_proj": "blk.{}.shortconv.in_proj",
    "model.layers.{}.conv.conv": "blk.{}.shortconv.conv",
    "model.layers.{}.conv.out_proj": "blk.{}.shortconv.out_proj",
    "model.layers.{}.ffn_norm": "blk.{}.ffn_norm",
    "model.layers.{}.feed_forward.w1": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.w3": "blk.{}.ffn_up",
    "model.layers.{}.feed_forward.w2": "blk.{}.ffn_down",
}
QWEN35 = LLAMA | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.linear_attn.in_proj_qkv": "blk.{}.attn_qkv",
    "model.layers.{}.linear_attn.in_proj_z": "blk.{}.attn_gate",
    "model.layers.{}.linear_attn.in_proj_a": "blk.{}.ssm_alpha",
    "model.layers.{}.linear_attn.in_proj_b": "blk.{}.ssm_beta",
    "model.layers.{}.linear_attn.conv1d": "blk.{}.ssm_conv1d",
    "model.layers.{}.linear_attn.dt": "blk.{}.ssm_dt",
    "model.layers.{}.linear_attn": "blk.{}",
    "model.layers.{}.linear_attn.norm": "blk.{}.ssm_norm",
    "model.layers.{}.linear_attn.out_proj": "blk.{}.ssm_out",
    "model.layers.{}.pre_fc_norm_embedding": "blk.{}.nextn.enorm",
    "model.layers.{}.pre_fc_norm_hidden": "blk.{}.nextn.hnorm",
    "model.layers.{}.fc": "blk.{}.nextn.eh_proj",
    "model.layers.{}.norm": "blk.{}.nextn.shared_head_norm",
}
MAMBA = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
}
GRANITE_HYBRID = LLAMA | {f"model.layers.{{}}.mamba.{here}": f"blk.{{}}.{there}" for here, there in MAMBA.items()}
GRANITE_HYBRID |= {
    "model.layers.{}.shared_mlp.input_linear": "blk.{}.ffn_gate_up",
    "model.layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down",
}
FALCON_H1 = GRANITE_HYBRID | {
    "model.final_layernorm": "output_norm",
    "model.layers.{}.pre_ff_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.feed_forward.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.feed_forward.down_proj": "blk.{}.ffn_down",
}
MAMBA2 = {
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "lm_head": "output",
    "backbone.layers.{}.norm": "blk.{}.attn_norm",
    "backbone.layers.{}.mixer.q_proj": "blk.{}.attn_q",
    "backbone.layers.{}.mixer.k_proj": "blk.{}.attn_k",
    "backbone.layers.{}.mixer.v_proj": "blk.{}.attn_v",
    "backbone.layers.{}.mixer.o_proj": "blk.{}.attn_output",
    "backbone.layers.{}.mixer.up_proj": "blk.{}.ffn_up",
    "backbone.layers.{}.mixer.down_proj": "blk.{}.ffn_down",
}
MAMBA2 |= {f"backbone.layers.{{}}.mixer.{here}": f"blk.{{}}.{there}" for here, there in MAMBA.items()}
# Mixtures of experts. A "+" joins the names of the two tensors into which the rows of one tensor are split, half and half.
EXPERTS = LLAMA | {
    "model.layers.{}.mlp.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.mlp.experts.gate_proj": "blk.{}.ffn_gate_exps",
    "model.layers.{}.mlp.experts.up_proj": "blk.{}.ffn_up_exps",
    "model.layers.{}.mlp.experts.down_proj": "blk.{}.ffn_down_exps",
    "model.layers.{}.mlp.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
    "model.layers.{}.mlp.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
    "model.layers.{}.mlp.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
    "model.layers.{}.mlp.shared_expert_gate": "blk.{}.ffn_gate_inp_shexp",
}
QWEN35_MOE = EXPERTS | QWEN35
QWEN3_NEXT = QWEN35_MOE | {"model.layers.{}.linear_attn.in_proj_ba": "blk.{}.ssm_ba"}
MIXTRAL = LLAMA | {
    "model.layers.{}.block_sparse_moe.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.experts.w1": "blk.{}.ffn_gate_exps",
    "model.layers.{}.block_sparse_moe.experts.w3": "blk.{}.ffn_up_exps",
    "model.layers.{}.block_sparse_moe.experts.w2": "blk.{}.ffn_down_exps",
}
SHARED_EXPERTS = EXPERTS | {
    f"model.layers.{{}}.mlp.shared_experts.{part}_proj": f"blk.{{}}.ffn_{part}_shexp" for part in ("gate", "up", "down")
}
GLM4_MOE = SHARED_EXPERTS | {"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"}
HUNYUAN_MOE = (
    HUNYUAN
    | EXPERTS
    | {
        "model.layers.{}.mlp.gate.wg": "blk.{}.ffn_gate_inp",
        "model.layers.{}.mlp.shared_mlp.gate_proj": "blk.{}.ffn_gate_shexp",
        "model.layers.{}.mlp.shared_mlp.up_proj": "blk.{}.ffn_up_shexp",
        "model.layers.{}.mlp.shared_mlp.down_proj": "blk.{}.ffn_down_shexp",
    }
)
BAILING = SHARED_EXPERTS | {
    "model.word_embeddings": "token_embd",
    "model.layers.{}.attention.query_key_value": "blk.{}.attn_qkv",
    "model.layers.{}.attention.query_layernorm": "blk.{}.attn_q_norm",
    "model.layers.{}.attention.key_layernorm": "blk.{}.attn_k_norm",
    "model.layers.{}.attention.dense": "blk.{}.attn_output",
    "model.layers.{}.enorm": "blk.{}.nextn.enorm",
    "model.layers.{}.hnorm": "blk.{}.nextn.hnorm",
    "model.layers.{}.eh_proj": "blk.{}.nextn.eh_proj",
    "model.layers.{}.final_layernorm": "blk.{}.layer_output_norm",
}
AFMOE = SHARED_EXPERTS | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.self_attn.gate_proj": "blk.{}.attn_gate",
    "model.layers.{}.pre_mlp_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
    "model.layers.{}.mlp.router.gate": "blk.{}.ffn_gate_inp",
}
GRANITE_MOE = LLAMA | {
    "model.layers.{}.block_sparse_moe.router.layer": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.input_linear": "blk.{}.ffn_gate_exps+blk.{}.ffn_up_exps",
    "model.layers.{}.block_sparse_moe.output_linear": "blk.{}.ffn_down_exps",
    "model.layers.{}.shared_mlp.input_linear": "blk.{}.ffn_gate_shexp+blk.{}.ffn_up_shexp",
    "model.layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
}
GRANITE_HYBRID |= {name: GRANITE_MOE[name] for name in GRANITE_MOE if ".block_sparse_moe." in name}
GRANITE_HYBRID |= {name.replace("shared_mlp", "shared_experts"): GRANITE_MOE[name] for name in GRANITE_MOE if ".shared_mlp." in name}
LFM2_MOE = LFM2 | {
    "model.layers.{}.feed_forward.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.feed_forward.experts.w1": "blk.{}.ffn_gate_exps",
    "model.layers.{}.feed_forward.experts.w3": "blk.{}.ffn_up_exps",
    "model.layers.{}.feed_forward.experts.w2": "blk.{}.ffn_down_exps",
}
NEMOTRON_H = MAMBA2 | {
    "backbone.layers.{}.mixer.gate": "blk.{}.ffn_gate_inp",
    "backbone.layers.{}.mixer.experts.up_proj": "blk.{}.ffn_up_exps",
    "backbone.layers.{}.mixer.experts.down_proj": "blk.{}.ffn_down_exps",
    "backbone.layers.{}.mixer.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
    "backbone.layers.{}.mixer.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
}
GRANITE_MOE_SWA = GRANITE_MOE | {  # the converter leaves the gates and ups of experts joined
    "model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks",
    "model.layers.{}.block_sparse_moe.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps",
    "model.layers.{}.block_sparse_moe.experts.down_proj": "blk.{}.ffn_down_exps",
    "model.layers.{}.shared_mlp.input_linear": "blk.{}.ffn_up_shexp",
}
GPT_OSS = LLAMA | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks",
    "model.layers.{}.mlp.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.mlp.experts.gate_up_proj": "blk.{}.ffn_gate_exps+blk.{}.ffn_up_exps",
    "model.layers.{}.mlp.experts.down_proj": "blk.{}.ffn_down_exps",
}
LATENT = {
    "model.layers.{}.self_attn.q_a_proj": "blk.{}.attn_q_a",
    "model.layers.{}.self_attn.q_a_layernorm": "blk.{}.attn_q_a_norm",
    "model.layers.{}.self_attn.q_b_proj": "blk.{}.attn_q_b",
    "model.layers.{}.self_attn.kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
    "model.layers.{}.self_attn.kv_a_layernorm": "blk.{}.attn_kv_a_norm",
    "model.layers.{}.self_attn.kv_b_proj": "blk.{}.attn_k_b+blk.{}.attn_v_b",
}
DEEPSEEK = (
    EXPERTS
    | LATENT
    | {
        "model.layers.{}.mlp.shared_experts.gate_proj": "blk.{}.ffn_gate_shexp",
        "model.layers.{}.mlp.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
        "model.layers.{}.mlp.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
    }
)
MINICPM3 = LLAMA | LATENT | {"model.layers.{}.self_attn.kv_b_proj": "blk.{}.attn_kv_b"}
EUROBERT = LLAMA | {"dense": "cls", "classifier": "cls.output"}
NEOBERT = {
    "encoder": "token_embd",
    "transformer_encoder.{}.attention_norm": "blk.{}.attn_norm",
    "transformer_encoder.{}.qkv": "blk.{}.attn_qkv",
    "transformer_encoder.{}.wo": "blk.{}.attn_output",
    "transformer_encoder.{}.ffn_norm": "blk.{}.ffn_norm",
    "transformer_encoder.{}.ffn.w12": "blk.{}.ffn_up",
    "transformer_encoder.{}.ffn.w3": "blk.{}.ffn_down",
    "layer_norm": "enc.output_norm",
    "dense": "cls",
    "classifier": "cls.output",
}
MAINCODER = LLAMA | {f"model.layers.{{}}.feed_forward.{part}_proj": f"blk.{{}}.ffn_{part}" for part in ("gate", "up", "down")}
STARCODER2 = LLAMA | {"model.layers.{}.mlp.c_fc": "blk.{}.ffn_up", "model.layers.{}.mlp.c_proj": "blk.{}.ffn_down"}
