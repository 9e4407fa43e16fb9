#!/usr/bin/env python3
"""Long-context accuracy of the needle model: eleven needles at depths 0 to 100% of one
context, asked one by one, all four tokens of the answer exact.

The local layers see 93 tokens back, so a context of any length is prefilled in chunks; the
global layer's attention runs only where an answer's tokens are predicted, densely and as a
sparse reader of the K/V cache would.
"""

import argparse
import random
import re
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import SmolLM3ForCausalLM
from transformers.utils.logging import disable_progress_bar

import model as needle
from text import ADJECTIVES, ANSWER, NEEDLE, NOUNS, QUESTION, synthetic

CHUNK = 8192
WARM_UP = 4 * needle.WINDOW  # more than the local layers' reach of 3 * 31 tokens
RECENT = 32  # positions that sparse methods always read
SCALE = needle.HEAD_DIM**-0.5


def dense(q, k, v):
    """q [KV heads, group, head dim], k and v [KV heads, tokens, head dim]."""
    return (q @ k.transpose(1, 2) * SCALE).softmax(-1) @ v


def attend_to(chosen, q, k, v):
    """Attention restricted to the positions chosen [KV heads, k]."""
    index = chosen[..., None].expand(-1, -1, needle.HEAD_DIM)
    return dense(q, k.gather(1, index), v.gather(1, index))


def top_with_recent(score, count):
    """The best count - RECENT positions by score [KV heads, tokens], and the latest RECENT."""
    tokens = score.shape[1]
    best = score[:, : tokens - RECENT].topk(count - RECENT).indices
    recent = torch.arange(tokens - RECENT, tokens).expand(len(score), -1)
    return torch.cat((best, recent), dim=1)


def top_k(count):
    """Exact top k of the scores, shared by the query heads of a group."""

    def attend(q, k, v):
        score = (q @ k.transpose(1, 2) * SCALE).softmax(-1).sum(1)
        return attend_to(score.topk(count).indices, q, k, v)

    return attend


def sparq(rank, count, mean_value):
    """SparQ attention (arXiv 2312.04985), one selection per KV head."""

    def attend(q, k, v):
        components = q.abs().sum(1).topk(rank).indices  # [KV heads, rank]
        k_part = k.gather(2, components[:, None].expand(-1, k.shape[1], -1))
        q_part = q.gather(2, components[:, None].expand(-1, q.shape[1], -1))
        kept = q_part.abs().sum(-1, keepdim=True) / q.abs().sum(-1, keepdim=True)
        temperature = (needle.HEAD_DIM * kept).sqrt()
        approximate = (q_part @ k_part.transpose(1, 2) / temperature).softmax(-1)
        chosen = top_with_recent(approximate.sum(1), count)
        y = attend_to(chosen, q, k, v)
        if mean_value:
            index = chosen[:, None].expand(-1, q.shape[1], -1)
            alpha = approximate.gather(2, index).sum(-1, keepdim=True)
            y = alpha * y + (1 - alpha) * v.mean(1, keepdim=True)
        return y

    return attend


METHODS = {
    "dense": dense,
    "top-k 32": top_k(32),
    "top-k 1": top_k(1),
    "SparQ r=16 k=128": sparq(16, 128, mean_value=True),
    "SparQ r=16 k=128, no mean value": sparq(16, 128, mean_value=False),
    "SparQ r=8 k=128": sparq(8, 128, mean_value=True),
}


def haystack(rng, tokenizer, tokens, book, count):
    """Ids of a context that fills `tokens` with its question, and its (key, digits) pairs."""
    chars = tokens * 4
    if book is None:
        text = synthetic(rng, chars)
    else:
        start = rng.randrange(len(book))
        text = (book * (2 + chars // len(book)))[start : start + chars]
    # Cut to length in tokens first, so that the depths are those asked for.
    room = tokens - 14 * count - 40
    encoding = tokenizer.encode(text)
    text = text[: encoding.offsets[min(room, len(encoding.ids) - 1)][0]]
    ends = [m.end() for m in re.finditer(r"[.!?](?=\s)", text)] + [len(text)]

    keys = [f"{a} {n}" for a, n in zip(rng.sample(ADJECTIVES, count), rng.sample(NOUNS, count))]
    pairs = [(key, str(rng.randrange(100_000, 1_000_000))) for key in keys]
    pieces, taken = [], 0
    for i, (key, digits) in enumerate(pairs):
        depth = len(text) * i // (count - 1)
        place = 0 if i == 0 else min(ends, key=lambda end: abs(end - depth))
        pieces += text[taken:place], NEEDLE.format(key=key, digits=digits)
        taken = place
    pieces.append(text[taken:])
    return torch.tensor(tokenizer.encode("".join(pieces)).ids), pairs


def local(model, ids):
    """Local layers over ids [tokens], whatever their number."""
    padded = torch.nn.functional.pad(ids, (0, -len(ids) % needle.WINDOW))
    return needle.local_layers(model, padded[None])[:, : len(ids)]


def prefill(model, ids):
    """K and V of the global layer for ids, each [KV heads, tokens, head dim], rounded to
    float16 as the cache stores them."""
    shape = (needle.KV_HEADS, len(ids), needle.HEAD_DIM)
    cache = torch.empty(shape, dtype=torch.float16), torch.empty(shape, dtype=torch.float16)
    for begin in range(0, len(ids), CHUNK):
        warm = max(0, begin - WARM_UP)
        x = local(model, ids[warm : begin + CHUNK])[:, begin - warm :]
        for whole, part in zip(cache, needle.global_keys_values(model, x)):
            whole[:, begin : begin + CHUNK] = part[0]
    return cache


def evaluate(model, tokenizer, ids, pairs):
    """Number of exact answers of each method."""
    k, v = (t.float() for t in prefill(model, ids))
    exact = dict.fromkeys(METHODS, 0)
    for key, digits in pairs:
        question = tokenizer.encode(QUESTION.format(key=key)).ids
        answer = tokenizer.encode(ANSWER.format(digits=digits)).ids
        # Greedy decoding gives the answer exactly if every token of it is the best one
        # after those before it, so the answer can be fed as a whole.
        fed = torch.tensor(question + answer[:-1])
        x = local(model, torch.cat((ids[-WARM_UP:], fed)))[:, -len(fed) :]
        new_k, new_v = (t[0].half().float() for t in needle.global_keys_values(model, x))
        all_k, all_v = torch.cat((k, new_k), dim=1), torch.cat((v, new_v), dim=1)
        x = x[:, len(question) - 1 :]
        q = needle.global_queries(model, x)[0]
        for name, attend in METHODS.items():
            y = torch.stack([
                attend(q[:, :, i], *(t[:, : len(ids) + len(question) + i] for t in (all_k, all_v)))
                for i in range(len(answer))
            ], dim=2)
            best = needle.logits(model, x, y[None]).argmax(-1)[0].tolist()
            exact[name] += best == answer
    return exact


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).parent
    parser.add_argument("--model", type=Path, default=here / "model")
    parser.add_argument("--haystack", type=Path, help="book to search; templates if absent")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 65536, 262144, 1048576])
    parser.add_argument("--needles", type=int, default=11)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    disable_progress_bar()
    torch.set_num_threads(args.threads)
    model = SmolLM3ForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    book = args.haystack.read_text(encoding="utf-8") if args.haystack else None
    for tokens in args.tokens:
        for seed in args.seeds:
            start = time.monotonic()
            ids, pairs = haystack(random.Random(seed), tokenizer, tokens, book, args.needles)
            exact = evaluate(model, tokenizer, ids, pairs)
            results = ", ".join(f"{name}: {n}" for name, n in exact.items())
            seconds = time.monotonic() - start
            print(f"{len(ids)} tokens, seed {seed}: {results} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
