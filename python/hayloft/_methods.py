"""Attention methods of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _core

Select = Callable[[np.ndarray, _core.View], Any]


def method(name: str) -> Callable[[Select], Select]:
    """Makes a function an attention method, known by `name` wherever a method is: attend, sessions, eval, transformers.

        @hayloft.method("strongest")
        def strongest(q, view):
            scores = [q[2 * h:2 * h + 2].sum(axis=0) @ view.keys(h).T for h in range(view.kv_heads)]
            return [s.argsort()[-view.count:] for s in scores]

        hayloft.attend(q, k, v, attn="strongest:k=64")

    The function is called for each decoded token and layer with

    q: f32 [Hq, d], as it is attended with, not divided by sqrt(d);
    view: of the layer's keys in the store. view.limit: positions [0, limit) can be selected, what is newer is attended to
        anyway; view.count: how many positions of a list, at most; view.lists: Hkv, or Hq where the method is asked for with
        select=query-head; view.tokens, view.kv_heads, view.layer; view.keys(head): f16 [limit, d]; view.column(head,
        component): f16 [limit]. Both copy, and count as read. A view is good for its call alone.

    and returns positions, [lists, n] with n at most view.count, without repetition. Of its options it has k, window and
    select. Raises Error on a name that is taken.
    """

    def register(function: Select) -> Select:
        _core.register_method(name, function)
        return function

    return register
