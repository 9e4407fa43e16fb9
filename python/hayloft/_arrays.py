"""Arrays of others as NumPy arrays, without a copy where that can be."""

import numpy as np

_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def as_array(array, name):
    """The array as (contiguous NumPy array, dtype name of the store): a view of the same memory where its layout is
    row-major and it lies in host memory. Takes whatever NumPy takes, anything that speaks DLPack, and PyTorch's tensors,
    bfloat16 among them."""
    if not isinstance(array, np.ndarray):
        array = _from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
    if isinstance(array, tuple):
        return np.ascontiguousarray(array[0]), array[1]
    if np.ma.is_masked(array):
        raise TypeError(f"{name}: is a masked array, and what its mask hides would be attended to; pass what is left of it")
    dtype = _DTYPES.get(array.dtype.name)
    if dtype is None:
        raise TypeError(f"{name}: has dtype {array.dtype}; it must be one of {', '.join(_DTYPES)}")
    if dtype == "BF16":
        array = array.view(np.uint16)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")), dtype  # whichever order its bytes had


def _from_dlpack(array):
    if hasattr(array, "detach"):  # PyTorch
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":  # NumPy has no such type
            import torch

            return array.contiguous().view(torch.int16).numpy(), "BF16"
    return np.from_dlpack(array)
