#!/usr/bin/env python3
"""Trains the bundled needle model: tokenizer, weights and configuration, from a seed and
a few books, in under an hour on two CPU cores. README.md tells why it is done this way."""

import argparse
import json
import math
import os
import random
import time
from pathlib import Path

# Threads that spin at a barrier cost more than they gain once other work shares the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn.functional as F
from transformers import SmolLM3ForCausalLM
from transformers.utils.logging import disable_progress_bar

import model as needle
from text import ADJECTIVES, END_OF_TEXT, NOUNS, Filler, Stage, draw_sample, train_tokenizer

CURRICULUM = [
    Stage(0, 2, 2, words=1, bare=True),
    Stage(0, 4, 4, words=1, bare=True),
    Stage(0, 8, 8, words=1, bare=True),
    Stage(0, 8, 8, words=1),
    Stage(0, 12, 12),
    Stage(512, 16, 16),
    Stage(512, 16, 16, length_factor=256),
    Stage(1024, 24, 16, length_factor=1024),
    Stage(2048, 32, 16, length_factor=4096),
]
PASS = 0.85  # running accuracy that ends a stage
TOKENS_PER_STEP = 4096
ANSWER_TOKENS = 4  # space, two groups of digits, full stop


def batch(rng, tokenizer, filler, stage):
    """Ids, positions before the answers' tokens, and which tokens are filler."""
    # An estimate, low for the bare needles of the first stages: with padding their batches
    # are of twice TOKENS_PER_STEP, and with fewer samples the first stage stalls.
    needle_tokens = 4 if stage.bare else 12
    length = stage.filler + stage.needles * needle_tokens + stage.questions * 3 * needle_tokens
    samples = [
        draw_sample(rng, stage, filler) for _ in range(max(1, TOKENS_PER_STEP // length))
    ]
    encodings = tokenizer.encode_batch([sample.text for sample in samples])
    longest = max(len(e.ids) for e in encodings)
    longest += -longest % needle.WINDOW
    # Padding comes last, where causal attention keeps it out of sight.
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    is_filler = torch.zeros(len(samples), longest)
    positions = []
    for row, (sample, encoding) in enumerate(zip(samples, encodings)):
        starts = np.array([start for start, _ in encoding.offsets])
        ids[row, : len(starts)] = torch.tensor(encoding.ids)
        is_filler[row, : len(starts)] = 1
        for begin, end in sample.special:
            is_filler[row, slice(*np.searchsorted(starts, (begin, end)))] = 0
        answers = [np.searchsorted(starts, begin) for begin, _ in sample.answers]
        positions.append(np.concatenate([a - 1 + np.arange(ANSWER_TOKENS) for a in answers]))
    return ids, torch.tensor(np.stack(positions)), is_filler


def save(model, tokenizer, out: Path) -> None:
    """Weights are stored, and from then on used, as float16."""
    half = SmolLM3ForCausalLM(model.config).half()
    half.load_state_dict(model.state_dict())
    half.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    # Readers older than transformers 5 look for the base of RoPE at the top level.
    path = out / "config.json"
    config = json.loads(path.read_text()) | {"rope_theta": needle.ROPE_THETA}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tokenizer.save(str(out / "tokenizer.json"))
    for_transformers = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(for_transformers, indent=2) + "\n")


def check_against_transformers(model, tokenizer) -> None:
    """The forward pass here and transformers' own must give the same logits."""
    ids = torch.randint(tokenizer.get_vocab_size(), (2, 5 * needle.WINDOW))
    everywhere = torch.arange(ids.shape[1]).repeat(2, 1)
    with torch.no_grad():
        ours = needle.forward_at(model, ids, everywhere)
        theirs = model(ids).logits
    difference = (ours - theirs).abs().max().item()
    print(f"largest difference to transformers' logits: {difference:.1e}", flush=True)
    # Both sum the same products in float32, in another order.
    assert difference < 1e-3 * theirs.abs().max().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--vocabulary", type=int, default=5120)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    books = [path.read_text(encoding="utf-8") for path in args.corpus]
    filler = Filler(books)
    tokenizer = train_tokenizer("\n\n".join(filler.books), args.vocabulary)
    whole = sum(len(tokenizer.encode(" " + w).ids) == 1 for w in ADJECTIVES + NOUNS)
    print(f"{whole} of {len(ADJECTIVES + NOUNS)} listed words are one token")

    model = needle.create(tokenizer.get_vocab_size(), args.width)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    check_against_transformers(model, tokenizer)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0
    )
    # Warm up, hold, then fall to zero over the last third.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 100, 3 * (1 - s / args.steps))
    )

    start, stage, accuracy = time.monotonic(), 0, 0.0
    for step in range(args.steps):
        ids, positions, is_filler = batch(rng, tokenizer, filler, CURRICULUM[stage])
        # A context of millions of tokens has that many more fillers than a sample: each
        # filler stands for rep of them, which adds ln(rep) to its score.
        log_rep = rng.random() * math.log(CURRICULUM[stage].length_factor)
        out = needle.forward_at(model, ids, positions, log_rep * is_filler)
        target = ids.gather(1, positions + 1)
        loss = F.cross_entropy(out.flatten(0, 1), target.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

        exact = (out.argmax(-1) == target).view(-1, ANSWER_TOKENS).all(-1)
        accuracy += 0.05 * (exact.float().mean().item() - accuracy)
        if step % 50 == 0 or step == args.steps - 1:
            print(
                f"step {step} stage {stage + 1} loss {loss.item():.4f} "
                f"accuracy {accuracy:.3f} {time.monotonic() - start:.0f} s",
                flush=True,
            )
        if step % 100 == 99 or step == args.steps - 1:
            save(model, tokenizer, args.out)
        if accuracy > PASS and stage + 1 < len(CURRICULUM):
            stage, accuracy = stage + 1, 0.0
            print(f"stage {stage + 1} at {time.monotonic() - start:.0f} s", flush=True)
    check_against_transformers(model, tokenizer)


if __name__ == "__main__":
    main()
