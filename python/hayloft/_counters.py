"""What decoding reads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Counters:
    """What steps have read, summed over KV heads and global layers.

    elements: as the papers count them, wherever they lie.
    positions_scored: keys that a search looked at.
    rows_fetched: rows [K | V] that were read.
    bytes: by place ("link", "near", "device") and kind ("columns", "scales", "rows", "dense", "spill", "index"), as the
        layout costs.
    """

    elements: int = 0
    positions_scored: int = 0
    rows_fetched: int = 0
    bytes: dict[str, dict[str, int]] = field(default_factory=dict)

    def total(self, place: str) -> int:
        """Bytes read at a place: "link", "near" or "device"."""
        return sum(self.bytes.get(place, {}).values())

    def __add__(self, other: Counters) -> Counters:
        places = {place: {kind: count + other.bytes.get(place, {}).get(kind, 0) for kind, count in kinds.items()}
                  for place, kinds in self.bytes.items()} or other.bytes
        return Counters(self.elements + other.elements, self.positions_scored + other.positions_scored,
                        self.rows_fetched + other.rows_fetched, places)
