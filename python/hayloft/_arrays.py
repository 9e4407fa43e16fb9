"""Arrays of others as NumPy arrays, without a copy where that can be; and lists of numbers."""

import operator

import numpy as np

_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def as_array(array, name):
    """The array as (contiguous NumPy array, dtype name of the store): a view of the same memory where its layout is
    row-major and it lies in host memory. Takes whatever NumPy takes, anything that speaks DLPack, and PyTorch's tensors,
    bfloat16 among them."""
    if not isinstance(array, np.ndarray):
        array = _from_dlpack(array, name) if hasattr(array, "__dlpack__") else np.asarray(array)
    if isinstance(array, tuple):
        return np.ascontiguousarray(array[0]), array[1]
    if np.ma.is_masked(array):
        _refuse_mask(name)
    dtype = _dtype(array.dtype.name, name)
    if dtype == "BF16":
        array = array.view(np.uint16)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")), dtype  # whichever order its bytes had


def _dtype(dtype, name):
    if dtype not in _DTYPES:
        raise TypeError(f"{name}: has dtype {dtype}; it must be one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _refuse_mask(name):
    raise TypeError(f"{name}: is a masked array, and what its mask hides would be attended to; pass what is left of it")


def token_ids(tokens):
    """Ids of tokens as a list of int. Raises TypeError where they are no whole numbers, or bytes, which are a text."""
    if isinstance(tokens, (bytes, bytearray, memoryview)):
        raise TypeError(f"{type(tokens).__name__} are no ids of tokens; decode them to a str, or pass a list of ids")
    return [operator.index(token) for token in (tokens.tolist() if hasattr(tokens, "tolist") else tokens)]


def numbers(one_or_several):
    """A whole number, or several, as a list of int."""
    return [operator.index(number) for number in ([one_or_several] if np.ndim(one_or_several) == 0 else one_or_several)]


def _from_dlpack(array, name):
    if hasattr(array, "detach"):  # PyTorch
        if hasattr(array, "get_mask"):
            _refuse_mask(name)
        dtype = _dtype(str(array.dtype).removeprefix("torch."), name)
        array = array.detach().cpu().resolve_neg()  # a sign that is yet to be changed is not in the memory
        if dtype == "BF16":  # NumPy has no such type
            import torch

            return array.contiguous().view(torch.int16).numpy(), "BF16"
    return np.from_dlpack(array)
