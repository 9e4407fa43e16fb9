"""Contexts that were read elsewhere."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from . import _core
from ._arrays import as_array, token_ids
from ._machine import default_machine
from ._model import Model
from ._paths import path_bytes


def save_context(past_key_values: Any, tokens: Any, model: Model | str | PathLike, path: str | PathLike, *,
                 block_tokens: int = 4096, columns: str = "f16", rows: str = "f16", overwrite: bool = False,
                 machine: _core.Machine | None = None) -> tuple[int, int]:
    """Saves a context that another program has read, so that hayloft opens it as one of its own.

    past_key_values: a cache of transformers, hayloft.transformers.Cache among them; or a list with (k, v) for each layer,
        [Hkv, S, d] or [1, Hkv, S, d], K rotated and normed as it is attended to. Sliding-window layers may hold the newest
        tokens alone.
    tokens: ids of all tokens, [N] or [1, N], S or more; those behind S are read when the context is opened.
    model: what it is to be opened with: a Model, or the path of a folder or GGUF file.
    path: of the .hay file. It appears whole or not at all.
    block_tokens, columns, rows: of the store, as Session has them; those of a hayloft.transformers.Cache are its own.

    K and V are rounded to 16 bits, or as `rows` says. Returns (tokens, of which have K and V). Raises Error when they do
    not fit the model.
    """
    path = path_bytes(path)
    ids = token_ids(tokens[0] if np.ndim(tokens) == 2 and len(tokens) == 1 else tokens)
    model = path_bytes(getattr(model, "path", model))
    layers = getattr(past_key_values, "layers", past_key_values)
    opened = getattr(past_key_values, "_open", None)
    if opened is not None:
        windows = {index: _window_rows(layer) for index, layer in enumerate(layers) if layer.keys is not None}
        opened.save(path, model, ids, windows, overwrite)
        return len(ids), past_key_values.length(past_key_values._windows.index(0))
    arrays = [tuple(as_array(_heads(each), f"layer {index}") for each in _pair(layer, index))
              for index, layer in enumerate(layers)]
    if not arrays:
        raise _core.Error("no layer is given: past_key_values must hold keys and values of every layer of the model")
    dtypes = {dtype for pair in arrays for _, dtype in pair}
    if len(dtypes) != 1:
        raise TypeError(f"K and V are of several types: {', '.join(sorted(dtypes))}; they must be of one")
    k, v = ([pair[half][0] for pair in arrays] for half in (0, 1))
    return _core.save_context(machine or default_machine(), ids, k, v, dtypes.pop(), model, path, block_tokens,
                              columns, rows, overwrite)


def _pair(layer, index):
    if hasattr(layer, "keys"):
        if layer.keys is None:
            raise _core.Error(f"layer {index}: holds no keys, of a recurrent layer or of nothing that was read")
        return _filled(layer, index) if hasattr(layer, "get_seq_length") else (layer.keys, layer.values)
    if len(layer) < 2 or layer[0] is None:
        raise _core.Error(f"layer {index}: is no pair of keys and values")
    return layer[0], layer[1]


def _filled(layer, index):
    """Returns keys and values of a layer of transformers. A static one is longer than what was read, a quantised one holds
    the newest alone beside numbers of its own."""
    held = layer.keys.shape[-2] if len(layer.keys.shape) == 4 else 0
    read = int(layer.get_seq_length())
    if held < read and not getattr(layer, "is_sliding", False):
        raise _core.Error(
            f"layer {index}: holds keys of {held} of the {read} tokens that were read, as a quantised cache does; "
            "read them into a DynamicCache of transformers"
        )
    return layer.keys[..., :read, :], layer.values[..., :read, :]


def _heads(array):
    return array[0] if len(array.shape) == 4 and array.shape[0] == 1 else array


def _window_rows(layer):
    """Rows [K | V] of a sliding-window layer, f16 [Hkv, n, 2 d]."""
    import torch

    rows = torch.cat([layer.keys[0], layer.values[0]], dim=-1).detach().to("cpu", torch.float16)
    if not bool(torch.isfinite(rows).all()):
        raise _core.Error("keys or values of a sliding-window layer are beyond 65504: the store keeps finite numbers up to it")
    return np.ascontiguousarray(rows.numpy())
