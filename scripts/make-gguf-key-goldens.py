#!/usr/bin/env python3
"""scripts/make-gguf-key-goldens.py [CASE ...]: writes tests/golden/gguf/keys.json, what llama.cpp makes of small GGUF
files that differ in the keys of their architecture.

Each case has an architecture, the metadata under its prefix, and the log-probabilities of what follows the tokens. The
weights follow from the names of the tensors, here as in tests/support/keyed_gguf.h, so that no file is kept. Needs pip
install gguf numpy xllamacpp.
"""

import json
import pathlib
import sys
import tempfile
import urllib.request

import gguf
import numpy as np
import xllamacpp

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "gguf" / "keys.json"
VOCABULARY = 96
HIDDEN, HEADS, KV_HEADS, DIM, INNER, LAYERS = 64, 4, 2, 16, 96, 4
TOKENS = [(i * 37 + 11) % VOCABULARY for i in range(48)]

BASE = {
    "block_count": LAYERS,
    "context_length": 256,
    "embedding_length": HIDDEN,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": DIM,
    "rope.freq_base": 1000.0,
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 32,
}
GRANITE = {"logit_scale": 4.0, "embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.1}
SLIDING = {"attention.sliding_window": 8}
PATTERN = "attention.sliding_window_pattern"
LAYERS_BUT_LAST = [True, True, True, False]

# The architecture, then its keys besides those of BASE; a key that is None is not there.
CASES = {
    "olmo2": ("olmo2", {}),
    "olmo2-window": ("olmo2", {**SLIDING}),
    "olmo2-listed": ("olmo2", {**SLIDING, PATTERN: LAYERS_BUT_LAST}),
    "olmo2-listed-otherwise": ("olmo2", {**SLIDING, PATTERN: [False, True, False, True]}),
    "olmo2-every-other": ("olmo2", {**SLIDING, PATTERN: 2}),
    "olmo2-yarn": ("olmo2", {**SLIDING, PATTERN: LAYERS_BUT_LAST, **YARN}),
    "olmo2-linear": ("olmo2", {**SLIDING, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "olmo2-local-base": ("olmo2", {**SLIDING, "rope.freq_base_swa": 50.0}),
    "olmo2-pattern-without-window": ("olmo2", {PATTERN: LAYERS_BUT_LAST}),
    "olmo2-window-of-none": ("olmo2", {"attention.sliding_window": 0, PATTERN: LAYERS_BUT_LAST}),
    "gemma3": ("gemma3", {**SLIDING, PATTERN: 2, "rope.freq_base_swa": 100.0}),
    "gemma3-usual-pattern": ("gemma3", {**SLIDING}),
    "gemma3-listed": ("gemma3", {**SLIDING, PATTERN: [False, True, True, False]}),
    "gemma3-without-window": ("gemma3", {"rope.freq_base_swa": 100.0}),
    "gemma3-linear": ("gemma3", {**SLIDING, PATTERN: 2, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "gemma3-every-layer": ("gemma3", {**SLIDING, PATTERN: 0}),
    "gemma3-magnitude": ("gemma3", {**SLIDING, PATTERN: 2, "rope.scaling.attn_factor": 1.3}),
    "gemma3-uncapped": ("gemma3", {**SLIDING, "final_logit_softcapping": 0.0}),
    "granite": ("granite", {**GRANITE}),
    "granite-least": ("granite", {"logit_scale": 4.0}),
    "granite-zeros": (
        "granite",
        {"logit_scale": 4.0, "embedding_scale": 0.0, "residual_scale": 0.0, "attention.scale": 0.0},
    ),
    "granite-without-rope": ("granite", {**GRANITE, "rope.scaling.finetuned": False}),
    "granite-with-rope": ("granite", {**GRANITE, "rope.scaling.finetuned": True}),
    "llama": ("llama", {}),
    "llama-least": ("llama", {"attention.head_count_kv": HEADS, "rope.dimension_count": None, "rope.freq_base": None}),
    "llama-factor-of-zero": ("llama", {"rope.scaling.factor": 0.0}),
    "llama-factor-without-type": ("llama", {"rope.scaling.factor": 4.0}),
    "llama-older-factor": ("llama", {"rope.scale_linear": 4.0}),
    "llama-scaling-none": ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    "llama-older-factor-none": ("llama", {"rope.scaling.type": "none", "rope.scale_linear": 4.0}),
    "llama-magnitude": ("llama", {"rope.scaling.attn_factor": 1.3}),
    "llama-linear-magnitude": ("llama", {"rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.3}),
    "llama-yarn": ("llama", {**YARN}),
    "llama-yarn-magnitude": ("llama", {**YARN, "rope.scaling.attn_factor": 1.3}),
    "llama-finetuned": ("llama", {"rope.scaling.finetuned": False}),
    "llama-lists": (
        "llama",
        {
            "attention.head_count": [HEADS] * LAYERS,
            "attention.head_count_kv": [KV_HEADS] * LAYERS,
            "feed_forward_length": [INNER] * LAYERS,
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn": ("qwen2", {**YARN}),
    "qwen3": ("qwen3", {"attention.key_length": DIM, "attention.value_length": DIM}),
    "qwen3-yarn-magnitude": ("qwen3", {**YARN, "rope.scaling.attn_factor": 0.8}),
    "smollm3": ("smollm3", {}),
    "smollm3-linear": ("smollm3", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "phi3": ("phi3", {}),
    "phi3-longrope": ("phi3", {"rope.scaling.attn_factor": 1.2, "rope.scaling.original_context_length": 32}),
    "phi3-shortrope": ("phi3", {"rope.scaling.attn_factor": 1.2, "rope.scaling.original_context_length": 4096}),
    "mistral3": ("mistral3", {**YARN, "attention.temperature_scale": 0.3}),
    "mistral3-log-multiplier": (
        "mistral3",
        {**YARN, "attention.temperature_scale": 0.3, "rope.scaling.yarn_log_multiplier": 1.0},
    ),
    "mistral3-betas": (
        "mistral3",
        {**YARN, "rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 0.5},
    ),
    "mistral3-linear": (
        "mistral3",
        {
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "attention.temperature_scale": 0.3,
        },
    ),
    "mistral3-without-scaling": (
        "mistral3",
        {"rope.scaling.original_context_length": 16, "attention.temperature_scale": 0.3},
    ),
}


def uniform(name, count):
    """In [-1, 1): the same numbers as those of tests/support/keyed_gguf.h."""
    seed = np.uint32(2166136261)
    with np.errstate(over="ignore"):
        for letter in name.encode():
            seed = np.uint32((seed ^ np.uint32(letter)) * np.uint32(16777619))
        x = seed + np.arange(count, dtype=np.uint32) * np.uint32(2654435761)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(2246822507)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(3266489909)
        x = x ^ (x >> np.uint32(16))
    return x.astype(np.float64) / 2147483648.0 - 1.0


def tensor(name, *shape):
    values = uniform(name, int(np.prod(shape)))
    if "norm" in name:
        values = 1.0 + 0.5 * values
    elif name.startswith("rope_factors"):
        values = 2.0 + values
    elif name.endswith(".bias"):
        values = 0.5 * values
    elif name == "token_embd.weight":
        pass
    else:
        values = values * (2.5 / np.sqrt(float(shape[-1])))
    return name, values.astype(np.float32).reshape(shape)


def tensors(architecture, keys):
    yield tensor("token_embd.weight", VOCABULARY, HIDDEN)
    yield tensor("output_norm.weight", HIDDEN)
    yield tensor("output.weight", VOCABULARY, HIDDEN)
    if architecture == "phi3" and "rope.scaling.attn_factor" in keys:
        yield tensor("rope_factors_long.weight", DIM // 2)
        yield tensor("rope_factors_short.weight", DIM // 2)
    kv = keys["attention.head_count_kv"]
    kv_width = (kv[0] if isinstance(kv, list) else kv) * DIM
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        if architecture != "olmo2":
            yield tensor(at + "attn_norm.weight", HIDDEN)
            yield tensor(at + "ffn_norm.weight", HIDDEN)
        if architecture in ("olmo2", "gemma3"):
            yield tensor(at + "post_attention_norm.weight", HIDDEN)
            yield tensor(at + "post_ffw_norm.weight", HIDDEN)
        if architecture in ("qwen3", "gemma3"):
            yield tensor(at + "attn_q_norm.weight", DIM)
            yield tensor(at + "attn_k_norm.weight", DIM)
        if architecture == "olmo2":
            yield tensor(at + "attn_q_norm.weight", HIDDEN)
            yield tensor(at + "attn_k_norm.weight", kv_width)
        if architecture == "phi3":
            yield tensor(at + "attn_qkv.weight", HIDDEN + 2 * kv_width, HIDDEN)
            yield tensor(at + "ffn_up.weight", 2 * INNER, HIDDEN)
        else:
            for part, width in (("q", HIDDEN), ("k", kv_width), ("v", kv_width)):
                yield tensor(at + f"attn_{part}.weight", width, HIDDEN)
                if architecture == "qwen2":
                    yield tensor(at + f"attn_{part}.bias", width)
            yield tensor(at + "ffn_gate.weight", INNER, HIDDEN)
            yield tensor(at + "ffn_up.weight", INNER, HIDDEN)
        yield tensor(at + "attn_output.weight", HIDDEN, HIDDEN)
        yield tensor(at + "ffn_down.weight", HIDDEN, INNER)


def write(path, architecture, keys):
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in keys.items():
        key = f"{architecture}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([chr(33 + i) if i < 94 else "ab" if i == 94 else f"<{i}>" for i in range(VOCABULARY)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(VOCABULARY - 1)
    for name, values in tensors(architecture, keys):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def log_probabilities(path):
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(path), 256, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    body = {"prompt": TOKENS, "n_predict": 1, "temperature": 0, "ignore_eos": True, "n_probs": VOCABULARY}
    request = urllib.request.Request(
        server.listening_address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    top = json.load(urllib.request.urlopen(request))["completion_probabilities"][0]["top_logprobs"]
    values = [None] * VOCABULARY
    for each in top:
        values[each["id"]] = round(each["logprob"], 5)
    return values


def main():
    wanted = sys.argv[1:] or CASES
    kept = json.loads(OUT.read_text())["cases"] if OUT.exists() and sys.argv[1:] else {}
    cases = {}
    for name, (architecture, more) in CASES.items():
        keys = {key: value for key, value in {**BASE, **more}.items() if value is not None}
        if name in wanted:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "m.gguf"
                write(path, architecture, keys)
                values = log_probabilities(path)
        else:
            values = kept.get(name, {}).get("log_probabilities")
        cases[name] = {"architecture": architecture, "keys": keys, "log_probabilities": values}
    OUT.write_text(json.dumps({"tokens": TOKENS, "cases": cases}) + "\n")


main()
