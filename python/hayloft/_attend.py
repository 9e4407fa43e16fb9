"""Attention methods and searches on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core
from ._arrays import as_array
from ._counters import Counters
from ._machine import default_machine


@dataclass
class Attended:
    """What attend(..., details=True) returns.

    y: f32 [N, Hq, d].
    positions: i32 [N, lists, width], ascending, -1 behind the last; every position attended, by KV head or query head.
        None where all are attended.
    alpha: f32 [N, Hq], the approximate softmax mass of what was attended; None where the method has none.
    counters: of each query.
    """

    y: np.ndarray
    positions: np.ndarray | None
    alpha: np.ndarray | None
    counters: list[Counters]


def attend(q: Any, k: Any, v: Any, attn: str = "dense", *, details: bool = False, block_tokens: int = 4096,
           columns: str = "f16", rows: str = "f16", machine: _core.Machine | None = None) -> np.ndarray | Attended:
    """Attends with N independent decode queries over one cache, by any method.

    q: [N, Hq, d], not scaled: products are divided by sqrt(d).
    k, v: [Hkv, S, d]; Hkv divides Hq, d is a multiple of 8 up to 512. They are rounded to 16 bits, as the store keeps
        them.
    attn: a method as --attn takes it, "sparq:r=16:k=128".
    block_tokens, columns, rows: of the store; columns names a format as --columns does ("f16"), rows as --rows does ("f16").
    Arrays are of NumPy, or speak DLPack (PyTorch, JAX, CuPy ...), in f64, f32, f16 or bf16.

    Returns y, f32 [N, Hq, d]; with details, Attended. The same as the program's `hayloft attend`, to the bit. Raises Error
    in one line: what does not fit, and what to do.
    """
    machine = machine or default_machine()
    result = _core.attend(machine, *as_array(q, "q"), *as_array(k, "k"), *as_array(v, "v"), attn, block_tokens, columns,
                          rows)
    if not details:
        return result["y"]
    return Attended(result["y"], result["positions"], result["alpha"], [Counters(**each) for each in result["counters"]])


def search(q: Any, k: Any, count: int, *, per: str = "query-head", group: str = "softmax", block_tokens: int = 4096,
           machine: _core.Machine | None = None) -> np.ndarray:
    """The positions with the largest inner products, found exactly.

    q: [N, Hq, d].  k: [Hkv, S, d], rounded to 16 bits.
    count: positions of each list, at most S.
    per: "query-head", a list for each query head; "kv-head", one for the query heads that share a KV head, ranked by the
        sum of their softmaxes or of their logits, as `group` says ("softmax", "logits").
    Returns i32 [N, Hq or Hkv, count], ascending. Of equal products the smaller position is found.
    """
    if per == "query-head" and group == "logits":
        raise _core.Error('group \'logits\': ranks for the query heads of a KV head together; pass per="kv-head" with it')
    machine = machine or default_machine()
    return _core.search(machine, *as_array(q, "q"), *as_array(k, "k"), count, per, group, block_tokens)
