"""hayloft's cache and attention in the models of Hugging Face transformers.

    import hayloft.transformers
    hayloft.transformers.install()
    model.generate(ids, attn_implementation="hayloft:sparq:r=16:k=256")

What follows "hayloft:" is a method as --attn takes it. Layers that attend to everything keep K and V in the store, rounded
to 16 bits; sliding-window and recurrent layers stay with their own classes, and the former attend by PyTorch's own function.
Of the tokens that go through the model at once all but the last attend exactly, and the last one by the method, as a session
of hayloft reads a prompt. One sequence at a time (batch 1), without padding, for inference.
"""

import functools
import math

import numpy as np
import torch
from transformers import modeling_utils
from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.generation import GenerationMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from . import _core
from ._counters import Counters
from ._machine import default_machine
from ._masks import mask, require_all_before
from ._models import attends_itself, implementations, require_interface, uses_cache
from ._paths import path_bytes

PREFIX = "hayloft:"


class Cache(DynamicCache):
    """A cache for one sequence: K and V of layers that attend to everything lie in hayloft's store.

    config: of the model.
    block_tokens, columns, rows: of the store; columns names a format as --columns does ("f16"), rows as --rows does ("f16").
    window: tokens that stay out of the store even when they fill a block.

    To be passed as past_key_values to a model whose attention is "hayloft:..."; generate() makes one where none is given.
    """

    def __init__(self, config, *, block_tokens=4096, columns="f16", rows="f16", window=256, machine=None):
        super().__init__(config=config)
        self._options = (block_tokens, columns, rows, window)
        self._machine = machine or default_machine()
        self._open = None  # made when the shapes of K and V are known
        self._method = "dense"
        self.tokens = []  # of the saved context it was opened from
        windows = []
        for index, layer in enumerate(self.layers):
            if type(layer) is DynamicLayer:
                self.layers[index] = StoreLayer(self, index)
                windows.append(0)
            else:
                windows.append(int(getattr(layer, "sliding_window", None) or 1))
        if 0 not in windows:
            raise _core.Error("none of the model's layers attends to everything: there is nothing for the store to keep")
        self._windows = windows

    @property
    def counters(self):
        """What the tokens that attended by the method have read."""
        return Counters(**self._open.counters) if self._open else Counters()

    @property
    def read_by(self):
        """Says how the saved context was read that it was opened from, as "window w=32 s=4", and what has decoded since and left
        positions out, as "topk k=16 where it was decoded"; empty where all was exact."""
        return self._open.read_by if self._open else ""

    def length(self, layer):
        return self._open.length(layer) if self._open else 0

    def kv(self, layer):
        """K and V of a layer in the store, f16 arrays [Hkv, S, d], copied."""
        return self._open.kv(layer)[:2]

    def reset(self):
        super().reset()
        self._open = None

    def crop(self, *args, **kwargs):  # the number has another name in each version
        for layer in self.layers:  # before a sliding-window layer forgets tokens that the store keeps
            if isinstance(layer, StoreLayer):
                layer.crop(*args, *kwargs.values())
        super().crop(*args, **kwargs)

    def __deepcopy__(self, memo):
        raise _core.Error(
            "hayloft's cache cannot be copied: save it by hayloft.save_context, and open it by "
            "hayloft.transformers.open_context as often as it is needed"
        )

    def _attend(self, layer, method, q, k, v):
        if self._open is None:
            self._method = method
            self._open = _core.OpenCache(
                self._machine, q.shape[1], k.shape[1], k.shape[2], self._windows, method, *self._options
            )
        if method != self._method:
            self._open.set_method(method)
            self._method = method
        return self._open.attend(layer, q, k, v)


class StoreLayer(CacheLayerMixin):
    """A layer of Cache. Its keys and values are handed to hayloft's attention, which adds them to the store."""

    is_sliding = False
    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, cache, index):
        super().__init__()
        self._cache = cache
        self._index = index

    def lazy_initialization(self, *states):
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if key_states.shape[0] != 1:
            raise _core.Error(f"a batch of {key_states.shape[0]}: hayloft's cache keeps one sequence; go through them in turn")
        if key_states.shape != value_states.shape:
            raise _core.Error(
                f"layer {self._index}: keys are {list(key_states.shape)} and values {list(value_states.shape)}; "
                "the store keeps keys and values of one size"
            )
        self.lazy_initialization()
        return _Handed(self, key_states, "keys"), _Handed(self, value_states, "values")

    def attend(self, method, q, k, v):
        """q f32 [T, Hq, d], k and v f32 [T, Hkv, d], NumPy; returns f32 [T, Hq, d]."""
        return self._cache._attend(self._index, method, q, k, v)

    def get_seq_length(self, *args):
        return self._cache.length(self._index)

    def get_mask_sizes(self, query):
        return self.get_seq_length() + (query if isinstance(query, int) else query.shape[0]), 0

    def get_max_length(self):
        return -1

    get_max_cache_shape = get_max_length

    def offload(self):
        pass

    prefetch = offload

    def reset(self):
        self.is_initialized = False

    def crop(self, tokens):
        if tokens != 0:
            raise _core.Error("hayloft's store cannot forget tokens: assisted generation does not go with its cache")

    def batch_repeat_interleave(self, repeats):
        if repeats != 1:
            raise _core.Error(f"{repeats} sequences: hayloft's cache keeps one; generate them in turn")

    def batch_select_indices(self, indices):
        raise _core.Error("hayloft's cache keeps one sequence, of which nothing can be selected")

    def reorder_cache(self, beam_idx):
        raise _core.Error("hayloft's cache keeps one sequence: beam search does not go with it")


class _Handed:
    """New keys or values on their way from the cache to the attention; nobody else can use them, and it once."""

    def __init__(self, layer, states, what):
        self.layer, self._states, self._what = layer, states, what

    def take(self, module):
        """Returns the states, for the attention that adds them to the store."""
        if self._states is None:
            raise _core.Error(
                f"{type(module).__name__}: shares the {self._what} of layer {self.layer._index}, which hayloft's cache "
                "does not know; use a cache and an attention of transformers for this model"
            )
        states, self._states = self._states, None
        return states

    def __getattr__(self, name):
        raise _core.Error(
            f"the {self._what} of a layer are in hayloft's store, and this model's attention asks for their '{name}': "
            f'set attn_implementation="{PREFIX}..."; a model whose attention ignores that cannot use the store'
        )

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        handed = next(each for each in args if isinstance(each, cls))
        return handed.__getattr__(getattr(function, "__name__", "tensor"))


def _rows(states):
    """[1, heads, T, d] as a contiguous f32 array [T, heads, d] in host memory."""
    return np.ascontiguousarray(states[0].transpose(0, 1).detach().to("cpu", torch.float32).numpy())


def _kept(handed, module):
    """Returns keys or values as _rows() does. Raises Error where 16 bits do not hold them."""
    rows = _rows(handed.take(module))
    largest = float(np.abs(rows).max())
    if not largest < 65520:  # what is smaller rounds to 65504 at most
        raise _core.Error(
            f"{type(module).__name__}: the {handed._what} of layer {handed.layer._index} reach {largest}; "
            "the store keeps finite numbers of at most 65504"
        )
    return rows


def _attention(method, module, query, key, value, attention_mask=None, *, dropout=0.0, scaling=None, softcap=None,
               s_aux=None, **kwargs):
    """What transformers calls in every layer: query [1, Hq, T, d]; returns [1, T, Hq, d]."""
    if not isinstance(key, _Handed):
        return _elsewhere(method, module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
                          softcap=softcap, s_aux=s_aux, **kwargs)
    for name, given in (("softcap", softcap), ("s_aux", s_aux), ("position_bias", kwargs.get("position_bias"))):
        if given is not None:
            raise _core.Error(f"{type(module).__name__}: attends with {name}, which hayloft's attention does not know")
    _require_no_weights(module, kwargs)
    require_all_before(module, attention_mask, query.shape[2], key.layer.get_seq_length() + query.shape[2])
    if dropout:
        raise _core.Error(f"{type(module).__name__}: dropout of {dropout}: hayloft is for inference; call model.eval()")
    d = query.shape[-1]
    factor = 1.0 if scaling is None else float(scaling) * math.sqrt(d)
    q = _rows(query if abs(factor - 1) < 1e-9 else query * factor)
    out = torch.from_numpy(key.layer.attend(method, q, _kept(key, module), _kept(value, module)))
    return _WithoutGradient.apply(out.to(query.device, query.dtype).unsqueeze(0), query), None


class _WithoutGradient(torch.autograd.Function):
    """Hands on what was attended. A loss whose gradient goes through it is an error: it would be one without attention."""

    @staticmethod
    def forward(ctx, out, query):
        return out

    @staticmethod
    def backward(ctx, *gradients):
        raise _core.Error('hayloft\'s attention has no gradient: it is for inference; set attn_implementation="sdpa" to train')


def _require_no_weights(module, kwargs):
    """hayloft's attention never holds the weights of all positions, so that there is nothing to hand out."""
    if kwargs.get("output_attentions") or getattr(getattr(module, "config", None), "output_attentions", False):
        raise _core.Error(
            f"{type(module).__name__}: output_attentions: hayloft's attention keeps no weights; "
            'set attn_implementation="eager" for them'
        )


def _elsewhere(method, module, query, key, value, attention_mask, *, s_aux, **kwargs):
    """Layers whose K and V are not in the store: those with a sliding window, and exact attention without a cache."""
    if s_aux is not None:
        raise _core.Error(f"{type(module).__name__}: attends with s_aux, which hayloft's attention does not know")
    _require_no_weights(module, kwargs)
    windowed = kwargs.get("sliding_window") or getattr(module, "sliding_window", None) or getattr(module, "is_sliding", False)
    if not windowed and (method != "dense" or query.shape[2] != key.shape[2]):
        raise _core.Error(
            f"{type(module).__name__}: K and V are not in hayloft's store; "
            "pass past_key_values=hayloft.transformers.Cache(model.config)"
        )
    if kwargs.pop("softcap", None) is not None:
        raise _core.Error(f"{type(module).__name__}: attends with softcap, which hayloft's attention does not know")
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def register(method):
    """Makes "hayloft:METHOD" a name of attn_implementation. Returns the name. Raises Error on a method that is none."""
    name = method if method.startswith(PREFIX) else PREFIX + method
    _core.check_method(name[len(PREFIX):])
    modeling_utils.AttentionInterface.register(name, functools.partial(_attention, name[len(PREFIX):]))
    AttentionMaskInterface.register(name, mask)
    return name


_original = {}


def install(*methods):
    """Registers methods, and from now on any other when it is first asked for: by from_pretrained(...,
    attn_implementation="hayloft:..."), by model.set_attn_implementation, or by model.generate(...,
    attn_implementation="hayloft:..."), for that call alone. generate() makes a Cache where it is given none. It may be
    called again; uninstall() takes it back."""
    for method in methods:
        register(method)
    if _original:
        return
    model_class = modeling_utils.PreTrainedModel
    _original["check"] = check = model_class.get_correct_attn_implementation
    _original["set"] = set_attention = model_class.set_attn_implementation
    _original["generate"] = generate = GenerationMixin.generate

    @functools.wraps(check)
    def get_correct_attn_implementation(self, requested_attention, *args, **kwargs):
        if isinstance(requested_attention, str) and requested_attention.startswith(PREFIX):
            require_interface(self)
            return register(requested_attention)
        return check(self, requested_attention, *args, **kwargs)

    @functools.wraps(generate)
    def generate_with_store(self, *args, attn_implementation=None, **kwargs):
        before = implementations(self.config)
        if attn_implementation is not None:
            self.set_attn_implementation(attn_implementation)
        try:
            if str(self.config.get_text_config(decoder=True)._attn_implementation).startswith(PREFIX):
                cached = uses_cache(self, args[1] if len(args) > 1 else kwargs.get("generation_config"), kwargs)
                given = [kwargs.get(name) for name in ("past_key_values", "cache")]  # the latter is its newer name
                if not cached:
                    if any(isinstance(each, Cache) for each in given):
                        raise _core.Error("a cache is given beside use_cache=False: leave one of them out")
                    kwargs["use_cache"] = False  # whichever of several configurations this version goes by
                elif given == [None, None]:
                    kwargs["past_key_values"] = Cache(self.config.get_text_config(decoder=True))
            return generate(self, *args, **kwargs)
        finally:
            if attn_implementation is not None:
                self.set_attn_implementation(before)

    @functools.wraps(set_attention)
    def set_attn_implementation(self, attn_implementation, *args, **kwargs):
        set_attention(self, attn_implementation, *args, **kwargs)
        parts = attn_implementation if isinstance(attn_implementation, dict) else {"": attn_implementation}
        for part, name in parts.items():
            if not isinstance(name, str) or not name.startswith(PREFIX):
                continue
            whole = self.config if isinstance(attn_implementation, dict) else self.config.get_text_config(decoder=True)
            config = getattr(self.config, part, None) if part else whole
            if config is not None and config._attn_implementation != name:
                raise attends_itself(type(self))  # transformers has warned of it

    model_class.get_correct_attn_implementation = get_correct_attn_implementation
    model_class.set_attn_implementation = set_attn_implementation
    GenerationMixin.generate = generate_with_store


def uninstall():
    """Takes install() back; names that were registered stay."""
    if _original:
        modeling_utils.PreTrainedModel.get_correct_attn_implementation = _original.pop("check")
        modeling_utils.PreTrainedModel.set_attn_implementation = _original.pop("set")
        GenerationMixin.generate = _original.pop("generate")


def open_context(path, model, *, machine=None):
    """A saved context (.hay) as a Cache, read from its file in place; `cache.tokens` are the ids of all its tokens, and
    `cache.read_by` says how they were read where not exactly.

    model: of transformers, the one the context was read with, or its config. Only shapes can be compared.

        cache = hayloft.transformers.open_context("book.hay", model)
        ids = torch.tensor([cache.tokens + question])
        model.generate(ids, past_key_values=cache, attn_implementation="hayloft:sparq:r=16:k=256")

    Tokens that have no K and V yet are read by the model, as generate() does with all that the cache does not hold.
    """
    config = getattr(model, "config", model).get_text_config(decoder=True)
    cache = Cache(config, machine=machine)
    cache._open = _core.OpenCache.open(cache._machine, path_bytes(path), config.num_attention_heads, cache._windows, "dense")
    cache.tokens = list(cache._open.tokens)
    cached = cache._open.length(cache._windows.index(0))
    dtype = getattr(model, "dtype", None) or torch.float32
    device = getattr(model, "device", None) or "cpu"
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, StoreLayer):
            layer.is_initialized = True
            continue
        if not hasattr(layer, "sliding_window"):
            raise _core.Error(f"{path}: layer {index} of the model is recurrent, and a saved context has no state of it")
        k, v, _ = cache._open.kv(index)
        keep = layer.sliding_window - 1
        k, v = (torch.from_numpy(np.ascontiguousarray(each[:, -keep:]))[None].to(device, dtype) for each in (k, v))
        layer.update(k, v)
        layer.cumulative_length = cached
    return cache
