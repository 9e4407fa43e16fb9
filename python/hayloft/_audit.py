"""What a method catches of exact attention."""

from __future__ import annotations

import json


class Audit:
    """Samples of what a session decodes, compared with exact attention over the whole cache; Session.audit() begins one. As a
    context manager it ends with its block. What is decoded is the same with and without, to the bit."""

    def __init__(self, audit):
        self._audit = audit

    def finish(self) -> dict:
        """Ends it: what still waits is measured now. Returns the report."""
        self._audit.finish()
        return self.report

    @property
    def report(self) -> dict:
        """So far, as `--audit-json` of the program writes it (docs/audit.md): `calls`, `chosen`, `measured`, `dropped`, seconds, and
        `rows` with `layer`, `head`, `samples`, `k` and `recall`, `mass`, `error`, each `mean` and `worst`."""
        return json.loads(self._audit.json())

    def __str__(self) -> str:
        return self._audit.table()

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_) -> None:
        self._audit.finish()
