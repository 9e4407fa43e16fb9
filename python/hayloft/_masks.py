"""Masks of transformers: hayloft's attention shows each token all those before, and refuses any other."""

import torch
from transformers.masking_utils import causal_mask_function, sdpa_mask

from . import _core


def require_all_before(module, mask, queries, tokens):
    """Raises Error unless the mask of a layer shows each query all tokens up to its own and none behind, as the store does.

    mask: None, or [1, heads or 1, queries, tokens or more]: true, or 0, where a token is attended to.
    """
    name = type(module).__name__
    if getattr(module, "is_causal", True) is False:
        raise _core.Error(f"{name}: attends to tokens behind each query; hayloft's attention looks at those before alone")
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor):
        raise _core.Error(f"{name}: an attention mask of type {type(mask).__name__}: hayloft's cache takes a tensor")
    if mask.ndim != 4 or mask.shape[0] != 1 or mask.shape[2] != queries or mask.shape[3] < tokens:
        raise _core.Error(
            f"{name}: an attention mask of shape {list(mask.shape)} for {queries} queries and {tokens} tokens; "
            "it must be [1, heads, queries, tokens]"
        )
    mask = mask[..., :tokens]
    if mask.dtype == torch.bool:
        shown = mask
    elif mask.is_floating_point():
        shown = mask == 0
        if not bool((shown | (mask <= torch.finfo(mask.dtype).min / 2)).all()):
            raise _core.Error(f"{name}: the attention mask adds to scores, which hayloft's attention does not")
    else:
        raise _core.Error(f"{name}: an attention mask of {mask.dtype}: it must be of bool, or of a floating type to be added")
    before = torch.ones(queries, tokens, dtype=torch.bool, device=mask.device).tril(tokens - queries)
    if not bool((shown == before).all()):
        raise _core.Error(
            f"{name}: the attention mask is not the causal one: hayloft's cache shows each token all those before; "
            "give each document a cache of its own"
        )


def _require_causal(mask):
    """Raises Error unless the mask [batch, 1, queries, tokens] that a function gives shows all tokens before each query.

    Older versions of transformers put one together where there is one document, too.
    """
    causal = mask is not None and bool((mask == torch.ones_like(mask[0, 0]).tril(mask.shape[3] - mask.shape[2])).all())
    if not causal:
        raise _core.Error("the model has a mask of its own where hayloft's attention looks at all tokens before")


def mask(*args, **kwargs):
    """Returns the mask of a layer: none where everything is attended to, PyTorch's for a sliding window."""
    padding = kwargs.get("attention_mask")
    if padding is not None and not bool(padding.all()):
        raise _core.Error("the attention mask hides tokens: hayloft's cache takes one sequence without padding")
    if padding is not None and padding.shape[-1] < kwargs["kv_length"] + kwargs.get("kv_offset", 0):
        raise _core.Error(
            f"the attention mask is of {padding.shape[-1]} tokens and hides those behind, of "
            f"{kwargs['kv_length'] + kwargs.get('kv_offset', 0)}: leave it out, or pass one of all tokens"
        )
    if kwargs.get("local_size") is None:
        if kwargs.get("mask_function", causal_mask_function) is not causal_mask_function:
            _require_causal(sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False}))
        return None
    return sdpa_mask(*args, **kwargs)
