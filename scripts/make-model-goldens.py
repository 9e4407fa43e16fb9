#!/usr/bin/env python3
"""Writes tests/golden/models: small random checkpoints and the logits Hugging Face transformers gives for them.

Needs torch, transformers and safetensors (this script does, the build and the tests do not). Everything follows from
the seed, so a second run with the same versions changes nothing:

    scripts/make-model-goldens.py [NAME ...]

Each folder NAME holds a checkpoint in Hugging Face's layout, logits.safetensors (`logits` f32 [T, vocab], of a run in
float32 with eager attention over all T tokens at once) and golden.json: token ids, seed, versions, and what the logits
owe to precision, from which the tests take their tolerance:

    f16_cache   how far they move, at most and in root mean square, when K and V are rounded to f16 before they are
                attended to, which is the one approximation of hayloft's cache
    f32         how far they lie, at most, from the same run in float64
"""

import json
import pathlib
import shutil
import sys
import tempfile
import zlib

import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "models"
SEED = 20240917
TOKENS = 96

# Every case differs from the others in what it can break: head dimension, group size, dtype, sharding, tying, biases.
SHAPE = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

CASES = {
    # head dimension 8 of 6 heads, group size 3
    "llama": {"model_type": "llama", "head_dim": 8, "hidden_size": 36, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    # every frequency band of the scaling is met: wavelengths from 6 to 200,000 against 16 to 64; biases everywhere
    "llama-llama3": {
        "model_type": "llama",
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "_dtype": torch.float16,
    },
    # bf16 in two shards, the older spelling of the RoPE fields
    "llama-linear-sharded": {
        "model_type": "llama",
        "head_dim": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        "_dtype": torch.bfloat16,
        "_shards": 2,
        "_older_rope": True,
    },
    "mistral-sliding": {
        "model_type": "mistral",
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 24,
        "_dtype": torch.float16,
    },
    "qwen2": {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "num_hidden_layers": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "_dtype": torch.float16,
    },
    "qwen2-sliding": {
        "model_type": "qwen2",
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 2,
        "_omit": ["layer_types"],  # as files from before it was written have it
        "_dtype": torch.bfloat16,
    },
    # head dimension 24 where hidden_size / heads is 8: q is wider than the residual; an epsilon large enough to show
    "qwen3": {
        "model_type": "qwen3",
        "head_dim": 24,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "rms_norm_eps": 0.01,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    # three layers of gated delta rules to one of attention; 8 of 32 components rotated, value heads in pairs to a key head
    "qwen3_5": {
        "model_type": "qwen3_5_text",
        "head_dim": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "_dtype": torch.float16,
    },
    # another kernel, as many value heads as key heads, the global layers listed, one of them the first
    "qwen3_5-listed": {
        "model_type": "qwen3_5_text",
        "head_dim": 16,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 40,
        "linear_conv_kernel_dim": 3,
        "rms_norm_eps": 0.01,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
        "_dtype": torch.bfloat16,
    },
    # the shape of the needle model: sliding-window layers with RoPE, global layers without
    "smollm3": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 16,
        "no_rope_layers": [1, 1, 0, 0],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "_dtype": torch.bfloat16,
    },
    # two sliding layers to a global one, two RoPEs, queries scaled by another number than the head dimension
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 24,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 4,
        "sliding_window": 20,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 40,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    },
    # the older spelling of its RoPE fields
    "gemma3-older": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "hidden_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 16,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "_dtype": torch.float16,
        "_older_rope": True,
    },
    # heads of 512 components in the global layers, whose keys are their values, and of 16 in those that slide; 64 of 256
    # pairs turn
    "gemma4": {
        "model_type": "gemma4_text",
        "hidden_size": 32,
        "head_dim": 16,
        "global_head_dim": 512,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 20,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 4.0,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 100000.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
        "_dtype": torch.bfloat16,
    },
    # an MLP beside the experts; keys and values of their own everywhere, in global layers of more heads; 5 of 20 pairs
    "gemma4-moe": {
        "model_type": "gemma4_text",
        "head_dim": 24,
        "global_head_dim": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 16,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
        "intermediate_size": 56,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "_dtype": torch.float16,
    },
    # more positions than training had: the long list; 12 of 24 components are rotated, windows
    "phi3": {
        "model_type": "phi3",
        "hidden_size": 72,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "sliding_window": 40,
        "original_max_position_embeddings": 48,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "long_factor": [1.0, 1.1, 1.7, 3.0, 4.5, 5.25],
            "short_factor": [1.0, 1.0, 1.05, 1.1, 1.2, 1.3],
        },
        "_dtype": torch.float16,
    },
    # as many as training had: the short list
    "phi3-short": {
        "model_type": "phi3",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 128,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "long_factor": [1.0, 1.1, 1.7, 3.0, 4.5, 5.25, 6.0, 7.0],
            "short_factor": [1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5],
        },
        "_dtype": torch.bfloat16,
    },
    # queries grow with their position
    "ministral3": {
        "model_type": "ministral3",
        "head_dim": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.5,
        },
        "_dtype": torch.float16,
    },
    # queries are scaled by what training has seen, the base by what the model was made for
    "ministral3-dynamic": {
        "model_type": "ministral3",
        "head_dim": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 2,
        "max_position_embeddings": 40,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 10000.0,
            "factor": 3.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.5,
        },
        "_dtype": torch.float16,
    },
    "granite": {
        "model_type": "granite",
        "hidden_size": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "mlp_bias": True,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.25,
        "logits_scaling": 2.5,
        "tie_word_embeddings": True,
    },
    "olmo2": {
        "model_type": "olmo2",
        "hidden_size": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "rms_norm_eps": 0.01,
        "_dtype": torch.float16,
    },
    # experts: a layer without any, weights that do not sum to one
    "qwen3_moe-dense": {
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
    },
    # weights of a token's experts sum to one
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "num_experts": 7,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "_dtype": torch.float16,
    },
    # a gated expert of all tokens
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 56,
        "_dtype": torch.bfloat16,
    },
    "mixtral": {
        "model_type": "mixtral",
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 24,
        "_dtype": torch.bfloat16,
    },
    # weights that do not sum to one, one norm over all heads
    "olmoe": {
        "model_type": "olmoe",
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "rms_norm_eps": 0.01,
    },
    "granitemoe": {
        "model_type": "granitemoe",
        "hidden_size": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 24,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.25,
        "logits_scaling": 2.5,
        "tie_word_embeddings": True,
        "_dtype": torch.float16,
    },
    # sinks, biases, alternating windows, gate and up of the experts interleaved and transposed
    "gpt_oss": {
        "model_type": "gpt_oss",
        "head_dim": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 20,
        "swiglu_limit": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        "_omit": ["layer_types"],
        "_dtype": torch.float16,
    },
    # the experts in blocks of four bits
    "gpt_oss-mxfp4": {
        "model_type": "gpt_oss",
        "hidden_size": 64,
        "head_dim": 16,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_local_experts": 4,
        "num_experts_per_tok": 3,
        "sliding_window": 24,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16,
        },
        "_mxfp4": True,
        "_dtype": torch.bfloat16,
    },
    # a gated expert of all tokens, layers of gated delta rules
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe_text",
        "head_dim": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "_dtype": torch.float16,
    },
    # which hayloft does not know until examples/architecture registers it; attention_bias is there by default
    "seed_oss": {
        "model_type": "seed_oss",
        "head_dim": 16,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "attention_out_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0},
        "_omit": ["attention_bias"],
        "_dtype": torch.float16,
    },
    # every part of the ramp, in the older spelling
    "qwen2-yarn": {
        "model_type": "qwen2",
        "hidden_size": 96,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "num_hidden_layers": 2,
        "_dtype": torch.float16,
        "_older_rope": True,
    },
    "llama-yarn": {
        "model_type": "llama",
        "head_dim": 40,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 40,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 0.707,
            "mscale_all_dim": 0.3,
            "truncate": False,
        },
        "_dtype": torch.float16,
    },
    # a context longer than training's
    "llama-dynamic": {
        "model_type": "llama",
        "head_dim": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 40,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
    },
}


# Architectures whose norms multiply by 1 + weight; that of a layer of gated delta rules does not.
NORMS_ADD_ONE = ("gemma3_text", "qwen3_5_text", "qwen3_5_moe_text")


def randomise(model, generator):
    """Weights under which every part shows in the logits: attention neither flat nor one-hot, norms away from one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                adds_one = model.config.model_type in NORMS_ADD_ONE and not name.endswith("linear_attn.norm.weight")
                parameter.copy_((0.0 if adds_one else 1.0) + 0.3 * noise)
            elif name.endswith(".bias"):
                parameter.copy_(0.3 * noise)
            elif name.endswith(".sinks"):  # about as large as the sum over the keys
                parameter.copy_(2.0 + noise)
            elif name.endswith((".A_log", ".dt_bias")):  # a state is halved after 1 to some 100 tokens
                parameter.copy_(noise - 2.0)
            elif name.endswith(".conv1d.weight"):
                parameter.copy_(noise * 1.5 / parameter.shape[2] ** 0.5)
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(0.5 * noise)
            elif name.endswith("router.scale"):  # which is divided by the root of its size
                parameter.copy_(parameter.shape[-1] ** 0.5 * (1.0 + 0.3 * noise))
            elif name.endswith("per_expert_scale"):
                parameter.copy_(1.0 + 0.3 * noise)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(1.0 + 0.3 * torch.randn(buffer.shape, generator=generator))


def has_experts(config):
    return any(config.get(name) for name in ("num_experts", "num_local_experts"))


def saved_tensors(model, config):
    """The tensors by the names of files, which those of experts do not have while a model runs."""
    if not has_experts(config):
        return model.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return safetensors.torch.load_file(pathlib.Path(folder) / "model.safetensors")


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def to_mxfp4(matrix):
    """Blocks u8 [experts][rows][columns / 32][16] and scales [experts][rows][columns / 32] of [experts][columns][rows]:
    a power of two to 32 columns, the nearest of 16 numbers to each, the even column in a byte's lower half."""
    groups = matrix.float().transpose(1, 2).unflatten(-1, (-1, 32))
    exponents = groups.abs().amax(dim=-1).log2().floor().clamp(min=-120) - 2
    scaled = groups / exponents.exp2()[..., None]
    codes = (scaled.abs()[..., None] - FP4).abs().argmin(dim=-1) + 8 * (scaled < 0)
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8), (exponents + 127).to(torch.uint8)


def with_packed_experts(tensors):
    packed = {}
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[name + "_blocks"], packed[name + "_scales"] = (part.contiguous() for part in to_mxfp4(tensor))
        else:
            packed[name] = tensor
    return packed


def write_checkpoint(folder, model, config, case):
    dtype = case.get("_dtype", torch.float32)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in saved_tensors(model, config).items()}
    if case.get("_mxfp4"):
        tensors = with_packed_experts(tensors)
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    if config["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    shards = case.get("_shards", 1)
    if shards == 1:
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        names = sorted(tensors)
        weight_map = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            part = {name: tensors[name] for name in names[shard::shards]}
            safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
            weight_map.update({name: file for name in part})
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def config_fields(config, case):
    """What save_pretrained would write, less what has no bearing on the result."""
    fields = {**config.to_dict(), "architectures": [type(config).__name__.replace("Config", "ForCausalLM")]}
    for name in ("_name_or_path", "transformers_version", "dtype", "output_hidden_states", "return_dict", "id2label",
                 "label2id", "problem_type", "chunk_size_feed_forward", "is_encoder_decoder", "output_attentions"):
        fields.pop(name, None)
    for name in case.get("_omit", []):
        fields.pop(name)
    fields["torch_dtype"] = str(case.get("_dtype", torch.float32)).removeprefix("torch.")
    if case.get("_older_rope"):
        rope = dict(fields.pop("rope_parameters"))
        if "sliding_attention" in rope:
            fields["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            rope = dict(rope["full_attention"])
        fields["rope_theta"] = rope.pop("rope_theta")
        fields["rope_scaling"] = rope
    return fields


def through_f16(tensor):
    return tensor.half().to(tensor.dtype)


def run(model, tokens, cached=None):
    """Logits [T, vocab]; `cached` is applied to K (after RoPE) and V of every layer before they are attended to."""
    module = sys.modules[type(model).__module__]
    eager = module.eager_attention_forward
    if cached:
        module.eager_attention_forward = lambda layer, q, k, v, *rest, **named: eager(
            layer, q, cached(k), cached(v), *rest, **named
        )
    try:
        with torch.no_grad():
            return model.eval()(tokens, use_cache=False).logits[0].contiguous()
    finally:
        module.eager_attention_forward = eager


class Routed:
    """Records what is chosen from while it is open: the routers' inputs to top-k, and how many are taken."""

    def __enter__(self):
        self.seen, self.own = [], (torch.topk, torch.Tensor.topk)
        torch.topk = self.recorded(self.own[0])
        torch.Tensor.topk = self.recorded(self.own[1])
        return self

    def recorded(self, topk):
        def recording(scores, k, *rest, **named):
            self.seen.append((scores.detach().double(), k))
            return topk(scores, k, *rest, **named)

        return recording

    def __exit__(self, *error):
        torch.topk, torch.Tensor.topk = self.own

    def gaps(self):
        """Between the last expert that is chosen and the first that is not, of each token and layer."""
        ranked = [(scores.sort(dim=-1, descending=True).values, k) for scores, k in self.seen]
        return [values[..., k - 1] - values[..., k] for values, k in ranked]


def chooses_clearly(model, tokens):
    """Whether no token's choice of experts turns on what rounding K and V does, nor would by three times that."""
    with Routed() as exact:
        run(model, tokens)
    with Routed() as rounded:
        run(model, tokens, through_f16)
    moved = [(a[0] - b[0]).abs().amax(dim=-1) for a, b in zip(exact.seen, rounded.seen)]
    return all(bool((gap > 3 * by).all()) for gap, by in zip(exact.gaps(), moved))


def make(name, case):
    # Each case has a seed of its own, so that adding one does not change the others.
    seed = SEED + zlib.crc32(name.encode()) % 100000
    while not make_of(name, case, seed):
        seed += 1


def make_of(name, case, seed):
    generator = torch.Generator().manual_seed(seed)
    fields = {**SHAPE, **{key: value for key, value in case.items() if not key.startswith("_")}}
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    randomise(model, generator)
    tokens = torch.randint(0, config.vocab_size, (1, TOKENS), generator=generator)

    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_checkpoint(folder, model, config_fields(config, case), case)

    # Logits come from the checkpoint as it was written: its config.json and its rounded weights.
    with_experts = {"experts_implementation": "eager"} if has_experts(config.to_dict()) else {}
    if case.get("_mxfp4"):
        with_experts["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                              **with_experts)
    if with_experts and not chooses_clearly(model, tokens):
        return False
    logits = run(model, tokens)
    safetensors.torch.save_file({"logits": logits}, folder / "logits.safetensors")
    rounded = run(model, tokens, through_f16) - logits
    exact = run(model.double(), tokens) - logits
    golden = {
        "seed": seed,
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "tokens": tokens[0].tolist(),
        "f16_cache": {"largest": float(rounded.abs().max()), "rms": float(rounded.pow(2).mean().sqrt())},
        "f32": {"largest": float(exact.abs().max())},
    }
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size / 1024:.0f} KiB, logits' standard deviation {logits.std():.2f}")
    return True


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        make(name, CASES[name])


if __name__ == "__main__":
    main()
