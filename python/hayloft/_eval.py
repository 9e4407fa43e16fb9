"""Tasks put to a model, by several methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike

from . import _core
from ._arrays import numbers
from ._model import Model
from ._paths import path_bytes


def eval(model: Model, task: str = "niah_single_1", ctx_size: int | Sequence[int] = 4096,
         attn: str | Sequence[str] = ("dense", "sparq", "topk"), *, samples: int = 10, haystack: str | PathLike = "",
         seed: int = 42, needles: int = 11, digits: int = 7, chat: bool = False, fidelity_steps: int = 8,
         attention: bool = False, block_tokens: int = 0, columns: str = "f16",
         rows: str = "f16") -> list[dict] | tuple[list[dict], dict]:
    """Puts samples of a task to a model: each is read once and answered by every method.

    model: a Model.
    task: one of RULER's ("niah_single_1", "vt", "cwe" ...), or "depths": `needles` at even depths of one context.
    ctx_size: tokens of prompt and answer, a number or several.
    attn: a method, or several; "auto" keeps 95% of the attention mass, as in `hayloft eval`.
    samples: of the task at each length.
    haystack: a text file or a folder of them; a generated text otherwise. Tasks that hide nothing in a text warn of it.
    digits: of a number that is hidden, 1 to 18; the bundled needle model knows six.
    chat: whether RULER's prompts are written by the model's chat template.
    fidelity_steps: over which recall, mass and output error of each answer are measured; 0: not at all.
    attention: whether to measure what the model's attention is like, as `hayloft eval --attention-stats` does.
    block_tokens, columns, rows: of the store; 0 chooses by the length.

    Returns a list of rows, dicts as `hayloft eval --out` writes them (docs/eval.md); with attention, (rows, figures).
    """
    lengths = numbers(ctx_size)
    methods = [attn] if isinstance(attn, str) else list(attn)
    lines, figures = _core.evaluate(model._open, task, lengths, methods, samples, path_bytes(haystack), seed, needles, digits,
                                    chat, fidelity_steps, attention, block_tokens, columns, rows)
    results = [json.loads(line) for line in lines]
    return (results, json.loads(figures)) if attention else results
