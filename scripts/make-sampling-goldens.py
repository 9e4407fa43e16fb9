#!/usr/bin/env python3
"""Writes tests/golden/sampling.json: what Hugging Face transformers makes of logits before it draws from them.

Needs torch and transformers (this script does, the build and the tests do not). Everything follows from the seed:

    scripts/make-sampling-goldens.py

`logits` are those of a vocabulary of 24 tokens. Of each case in `edited`, `scores` are what the processors of a
generation_config.json (`config`) leave of them behind the tokens of `prompt` and `answer`; null is a token that cannot
be drawn. Of each case in `drawn`, `probabilities` are those a token is then drawn with. `texts` are what the model in
tests/golden/models/llama writes behind `prompt` by such a generation_config.json.
"""

import json
import pathlib

import torch
import transformers
from transformers.generation import logits_process as processors

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "sampling.json"
SEED = 20261125
VOCAB = 24
END = [2, 7]

PROMPT = [5, 9, 3, 5, 9, 11, 4, 3]
ANSWER = [5, 9, 12, 5, 9]

EDITED = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"no_repeat_ngram_size": 14},
    {"suppress_tokens": [0, 6, 23]},
    {"begin_suppress_tokens": [1, 4]},
    {"bad_words_ids": [[8], [2], [9, 10], [12, 5, 9, 3], [5, 12]]},
    {"min_new_tokens": 6},
    {"min_new_tokens": 5},
    {"min_length": 14},
    {"min_length": 13},
    {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "suppress_tokens": [6], "bad_words_ids": [[9, 10]]},
]

DRAWN = [
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.2},
    {"typical_p": 0.3},
    {"typical_p": 0.9},
    {"epsilon_cutoff": 0.05},
    {"epsilon_cutoff": 0.9},
    {"eta_cutoff": 0.05},
    {"eta_cutoff": 0.6},
    {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.8},
    {"repetition_penalty": 1.5, "top_k": 6, "suppress_tokens": [6, 17]},
]


# top_k 1 leaves no choice, so that sampled texts can be recorded too.
TEXTS = [
    {},
    {"repetition_penalty": 1.2},
    {"repetition_penalty": 1.2, "do_sample": True, "top_k": 1, "temperature": 0.7},
    {"no_repeat_ngram_size": 2},
    {"suppress_tokens": [45, 106, 120], "begin_suppress_tokens": [79, 9]},
    {"bad_words_ids": [[1], [124, 13], [2]], "no_repeat_ngram_size": 3, "repetition_penalty": 1.05},
    {"min_new_tokens": 8, "eos_token_id": [2, 91]},
    {"num_beams": 1, "max_length": 20, "typical_p": 1.0, "length_penalty": 1.0},
]


def write(config):
    folder = OUT.parent / "models" / "llama"
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = json.loads((folder / "golden.json").read_text())["tokens"][:24]
    model.generation_config = transformers.GenerationConfig.from_dict({"eos_token_id": 2, **config})
    with torch.no_grad():
        ids = torch.tensor([prompt])
        seen = torch.ones_like(ids)  # or it would take tokens of the prompt for padding
        tokens = model.generate(ids, attention_mask=seen, max_new_tokens=32, pad_token_id=0)[0, len(prompt) :].tolist()
    return {"config": config, "prompt": prompt, "tokens": tokens}


def edit(config, prompt, answer, logits):
    ids = torch.tensor([prompt + answer])
    end = torch.tensor(END)
    steps = []
    if "repetition_penalty" in config:
        steps.append(processors.RepetitionPenaltyLogitsProcessor(config["repetition_penalty"]))
    if "no_repeat_ngram_size" in config:
        steps.append(processors.NoRepeatNGramLogitsProcessor(config["no_repeat_ngram_size"]))
    if "bad_words_ids" in config:
        steps.append(processors.NoBadWordsLogitsProcessor(config["bad_words_ids"], end))
    if "min_length" in config:
        steps.append(processors.MinLengthLogitsProcessor(config["min_length"], end))
    if "min_new_tokens" in config:
        steps.append(processors.MinNewTokensLengthLogitsProcessor(len(prompt), config["min_new_tokens"], end))
    if "suppress_tokens" in config:
        steps.append(processors.SuppressTokensLogitsProcessor(config["suppress_tokens"]))
    if "begin_suppress_tokens" in config:
        steps.append(processors.SuppressTokensAtBeginLogitsProcessor(config["begin_suppress_tokens"], len(prompt)))
    scores = logits.clone()[None]
    for step in steps:
        scores = step(ids, scores)
    return scores


def warp(config, prompt, answer, logits):
    scores = edit(config, prompt, answer, logits)
    ids = torch.tensor([prompt + answer])
    warpers = [
        ("temperature", processors.TemperatureLogitsWarper),
        ("top_k", processors.TopKLogitsWarper),
        ("top_p", processors.TopPLogitsWarper),
        ("min_p", processors.MinPLogitsWarper),
        ("typical_p", processors.TypicalLogitsWarper),
        ("epsilon_cutoff", processors.EpsilonLogitsWarper),
        ("eta_cutoff", processors.EtaLogitsWarper),
    ]
    for name, warper in warpers:
        if name in config:
            scores = warper(config[name])(ids, scores)
    return torch.softmax(scores.double(), dim=-1)[0]


def main():
    torch.manual_seed(SEED)
    logits = (torch.randn(VOCAB) * 1.5).float()
    logits[6] = logits.max() + 1  # so that what suppresses it shows
    cases = {
        "transformers": transformers.__version__,
        "end_tokens": END,
        "logits": logits.tolist(),
        "edited": [],
        "drawn": [],
    }
    for config in EDITED:
        for answer in ([], ANSWER):
            scores = edit(config, PROMPT, answer, logits)[0].tolist()
            scores = [None if score == float("-inf") else score for score in scores]
            cases["edited"].append({"config": config, "prompt": PROMPT, "answer": answer, "scores": scores})
    for config in DRAWN:
        cases["drawn"].append(
            {
                "config": config,
                "prompt": PROMPT,
                "answer": ANSWER,
                "probabilities": [round(p, 12) for p in warp(config, PROMPT, ANSWER, logits).tolist()],
            }
        )
    cases["texts"] = [write(config) for config in TEXTS]
    OUT.write_text(json.dumps(cases) + "\n")


main()
