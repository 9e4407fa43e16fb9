"""What a run will take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike

from . import _core
from ._arrays import numbers
from ._machine import default_machine
from ._model import Model
from ._paths import path_bytes


def plan(model: Model | str | PathLike | None = None, ctx_size: int | Sequence[int] = 1 << 20,
         attn: str | Sequence[str] = ("dense", "sparq", "topk", "window"), *, shape: Sequence[int] | None = None,
         block_tokens: int = 4096, columns: str = "f16", rows: str = "f16",
         machine: _core.Machine | None = None) -> list[dict]:
    """Predicts memory, and the time of a token where `hayloft link` has measured this machine.

    model: a Model, or the path of a folder or GGUF file; or shape: (layers, query heads, KV heads, head dimension) of one
        that is not there.
    ctx_size: tokens of context, a number or several.
    attn: a method, or several.
    Returns a dict for each length, as `hayloft plan --json` has them in its "plans" (docs/plan.md); bytes and milliseconds.
    """
    lengths = numbers(ctx_size)
    methods = [attn] if isinstance(attn, str) else list(attn)
    if (model is None) == (shape is None):
        raise _core.Error("plan needs a model or a shape, one of them")
    path = b"" if model is None else path_bytes(getattr(model, "path", model))
    return json.loads(_core.plan(machine or default_machine(), path, list(shape or ()), lengths, methods, block_tokens,
                                 columns, rows))["plans"]
