"""What of the machine is used."""

from __future__ import annotations

from . import _core

_default: _core.Machine | None = None


def Machine(
    *,
    threads: int = 0,
    device: str = "auto",
    host_memory: int = 0,
    gpu_memory: int = 0,
    device_columns: int | None = 0,
    device_rows: int | None = 0,
    products: str = "exact",
) -> _core.Machine:
    """Threads, a device, and budgets of memory.

    threads: workers, the caller among them; 0 takes the processors that the process may use.
    device: "cpu", "cuda", or "auto": CUDA where there is a device.
    host_memory: bytes for K and V; 0 takes nine tenths of what is free.
    gpu_memory: bytes of device memory; 0 takes nearly all that is free.
    device_columns: bytes of it for key columns that are read often; None takes what is left.
    device_rows: bytes of it for rows that were attended to not long ago; None takes a 32nd.
    products: "exact", or "int8": quantised weights meet inputs rounded to 8 bits, on the CPU alone.
    Raises Error when the machine has not got it.
    """
    return _core.Machine(
        threads=threads,
        device=device,
        host_memory=host_memory,
        gpu_memory=gpu_memory,
        device_columns=device_columns,
        device_rows=device_rows,
        products=products,
    )


def default_machine() -> _core.Machine:
    """The machine that is used where none is given: made at the first call, with Machine()'s defaults."""
    global _default
    if _default is None:
        _default = Machine()
    return _default
