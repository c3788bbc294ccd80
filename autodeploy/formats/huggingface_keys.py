"""Spellings of a Hugging Face config.json: which of its keys give our fields, and which do not matter.

Data only. Our fields are named as in `spec/model.py`, with `attention.` and `moe.` before those of the parts.
"""

from __future__ import annotations

NESTS = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where models of several modalities keep their language model."""

PARTS = ("attn_config", "ffn_config")
"""Sub-tables that only group keys of the level around them (MPT, DBRX)."""

ALIASES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed", "emb_size"),
    "layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "max_seq_len": (
        "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx",
        "model_max_length", "sequence_len",
    ),
    "ffn_width": (
        "dense_intermediate_size", "intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "n_inner",
        "ffn_dim",
    ),
    "mtp_depth": (
        "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_layers",
    ),
    "tied_embeddings": ("tie_word_embeddings", "weight_tying"),
    "linear_bias": ("mlp_bias", "add_bias_linear", "use_bias", "bias"),
    "activation": ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", "activation_type"),
    "sandwich": ("sandwich_norm", "use_sandwich_norm"),
    "attention.heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_q_heads"),
    "attention.kv_heads": (
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "n_kv_heads", "num_query_groups",
        "multi_query_group_num",
    ),
    "attention.head_dim": ("head_dim", "attention_head_dim", "kv_channels", "key_size", "head_size"),
    "attention.qkv_bias": ("qkv_bias", "add_qkv_bias", "use_qkv_bias", "attention_bias", "use_bias", "bias"),
    "attention.qk_norm": ("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm", "qk_ln"),
    "attention.q_rank": ("q_lora_rank", "attention_q_lora_dim"),
    "attention.kv_rank": ("kv_lora_rank", "attention_kv_lora_dim"),
    "attention.nope_dim": ("qk_nope_head_dim", "attention_qk_dim"),
    "attention.rope_dim": ("qk_rope_head_dim", "attention_qk_rope_dim"),
    "attention.v_dim": ("v_head_dim", "attention_v_dim"),
    "moe.experts": ("n_routed_experts", "num_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "moe.top_k": (
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_top_k",
        "moe_k", "num_selected_experts",
    ),
    "moe.expert_width": (
        "moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size", "intermediate_size",
        "ffn_hidden_size",
    ),
    "moe.shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "moe.shared_width": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
        "share_expert_dim",
    ),
}  # fmt: skip
"""Our field -> the keys that may give it, in order of preference."""

OWN_MEANING = ("max_seq_len", "ffn_width", "linear_bias", "attention.qkv_bias", "moe.expert_width")
"""Fields whose keys, given together, mean different things: the first counts and the others say nothing about it."""

OTHER_KEYS = {
    "model_type", "architectures", "multi_query", "new_decoder_architecture", "use_mtp",
    "rms_norm_eps", "rmsnorm", "norm_type", "layer_norm_type", "widening_factor", "expansion_ratio",
}  # fmt: skip
"""Read by name where they are needed."""

HARMLESS = {
    # the tokeniser, generation and bookkeeping of the library
    "transformers_version", "auto_map", "use_cache", "torchscript", "return_dict", "return_dict_in_generate", "prefix",
    "top_k", "top_p", "typical_p", "temperature", "do_sample", "early_stopping", "min_length", "max_length",
    "num_beams", "num_beam_groups", "num_return_sequences", "length_penalty", "repetition_penalty", "bad_words_ids",
    "diversity_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "remove_invalid_values", "suppress_tokens", "begin_suppress_tokens", "finetuning_task", "problem_type",
    "task_specific_params", "pruned_heads", "id2label", "label2id", "tokenizer_class", "is_decoder", "ignore_index",
    "chunk_size_feed_forward", "tf_legacy_loss", "tie_encoder_decoder", "cache_implementation", "num_logits_to_keep",
    "is_encoder_decoder", "add_cross_attention", "language_model_only", "name", "classifier_dropout",
    # precision, parallelism and kernels: the job and the plan say what is trained and how
    "dtype", "torch_dtype", "expert_dtype", "use_bfloat16", "quantization_config", "compression_config",
    "pretraining_tp", "ep_size", "moe_router_dtype", "moe_shared_expert_overlap", "residual_in_fp32", "use_flash_attn",
    "attn_impl", "attn_type", "attn_uses_sequence_id", "fp32_residual_connection", "attention_softmax_in_fp32",
    "scale_attention_softmax_in_fp32", "init_device", "init_config", "tensor_parallel_degree",
    # positions
    "partial_rotary_factor", "rotary_dim", "rotary_pct", "rotary_emb_base", "indexer_rope_interleave",
    "initial_context_length", "original_max_position_embeddings", "max_window_layers", "no_rope_layers",
    "no_rope_layer_interval", "use_rope", "use_mrope", "mla_use_nope", "original_rope", "learned_pos_emb",
    "sliding_window_pattern", "sliding_window", "alibi", "swa_rope_theta", "compress_rope_theta",
    # scales, initialisation, regularisation
    "qk_norm_type", "use_gemma_norm", "query_pre_attn_scalar", "scale_attn_weights", "scale_emb", "scale_depth",
    "dim_model_base", "logit_scale", "softmax_scale", "clip_qkv", "attention_value_scale", "attn_temperature_tuning",
    "floor_scale", "attn_scale", "attn_pdrop", "resid_pdrop", "embd_pdrop", "emb_pdrop", "activation_situ_beta",
    "activation_situ_linear_beta", "swiglu_alpha", "swiglu_limit", "mup_width_multiplier", "rescale_prenorm_residual",
    "mlp_only_dropout",
    # routing: which experts, not how many
    "norm_topk_prob", "n_group", "topk_group", "topk_method", "scoring_func", "seq_aux", "aux_loss_alpha",
    "routed_scaling_factor", "moe_router_scaling_factor", "moe_renormalize", "moe_router_activation_func",
    "moe_gate", "moe_norm_min", "num_expert_group", "use_grouped_topk", "use_routing_bias",
    "use_moe_router_bias", "moe_router_enable_expert_bias", "router_jitter_noise", "use_mixed_mlp_moe",
    "moe_normalize_expert_weights", "uniform_expert_assignment", "moe_loss_weight", "routed_scaling",
    "moe_random_routing_dropped_token", "score_function", "router_dtype", "norm_head", "expert_selection_fn",
    # MTP and modalities: sizes given elsewhere
    "mtp_loss_scaling_factor", "qk_head_dim", "max_image_size", "spatial_merge_size", "mm_tokens_per_image",
    "process_image_mode", "use_unified_vision_chunk", "use_bidirectional_attention", "add_swa_attention_sink_bias",
    "add_full_attention_sink_bias", "post_layer_norm", "ffn_act_fn", "use_sliding_window", "num_reward_heads",
    "vocab_size_per_layer_input", "multi_query_attention", "alibi_bias_max", "no_bias", "prefix_lm",
}  # fmt: skip
"""Keys that change neither parameters nor FLOP nor memory of training."""

HARMLESS_STARTS = ("rope_", "image_", "video_", "audio_", "vision_", "media_", "img_", "projector_", "output_", "init_")
HARMLESS_ENDS = (
    "_token_id", "_token_ids", "_token_index", "_dropout", "_dropout_prob", "_pdrop", "_eps", "_epsilon", "_std",
    "_range", "_loss_coef", "_loss_coefficient", "_multiplier", "_theta", "_dtype", "_init_method", "_placeholder",
)  # fmt: skip

UNMODELLED = {
    "vision_config": "the vision tower is left out",
    "audio_config": "the audio tower is left out",
    "talker_config": "the speech model is left out",
    "final_logit_softcapping": "the pass over the logits is left out",
    "attn_logit_softcapping": "the pass over the scores is left out",
    "mtp_use_dedicated_embeddings": "MTP shares the embedding here",
    "mtp_transformer_layers": "an MTP module has one layer here",
    "moe_drop_tokens": "no token is dropped here",
    "expert_capacity": "no token is dropped here",
    "shared_expert_gate": "the gate of the shared expert is left out",
}
"""Keys that change a little, and what is done instead."""

NEUTRAL = {"mtp_transformer_layers": 1}
"""Values beside null, zero, false and empty by which such a key changes nothing."""


def is_harmless(key: str) -> bool:
    """Whether a key says nothing about parameters, FLOP or memory."""
    if key in UNMODELLED:
        return False
    return key in HARMLESS or key.startswith(HARMLESS_STARTS) or key.endswith(HARMLESS_ENDS)
