"""Names of files."""

from __future__ import annotations

import os


def path_bytes(path: str | os.PathLike) -> bytes:
    """The path as the system takes it. Raises ValueError where it holds a zero byte: the system would end the name there, and
    take another file."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"the path {name!r} has a zero byte in it")
    return name
