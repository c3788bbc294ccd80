"""Places in a framework's code that have storages saved, and our rows beside them: bytes of a row are ours and the
differences of its places, exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.interop.hf_layers import Sizes
from tests.interop.saved import Site, Storage

Formula = Callable[[Sizes], int]
Tail = Callable[[Sizes], tuple[int, ...]]


def nothing(_: Sizes) -> int:
    """No difference."""
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A line that had storages saved, and the row that they belong to."""

    row: str
    """One of ours, two of ours joined by +, or a name of its own."""
    module: str
    """Its name, in which * stands for anything."""
    line: str
    """Part of the line."""
    more: Formula = nothing
    """Bytes beyond our row."""
    tail: Tail | None = None
    """Only tensors of these last dimensions: one line may save several."""
    dtype: str = ""

    def takes(self, site: Site, z: Sizes) -> bool:
        """Whether a site is this place."""
        return (
            fnmatchcase(site.module, self.module)
            and self.line in site.line
            and self.dtype in ("", site.dtype)
            and (self.tail is None or self.tail(z) == site.shape[-len(self.tail(z)) :])
        )


def hidden(z: Sizes) -> int:
    """Elements of a hidden state."""
    return z.T * z.h


def names(row: str) -> list[str]:
    """Our rows that a place's row stands for."""
    return row.split("+")


def bytes_by_place(storages: Iterable[Storage], places: tuple[Place, ...], z: Sizes) -> dict[Place | None, int]:
    """Bytes of every place, that of none included; a storage belongs to the first place that takes one of its sites."""
    found: dict[Place | None, int] = {}
    for storage in storages:
        place = next((each for each in places if any(each.takes(site, z) for site in storage.sites)), None)
        found[place] = found.get(place, 0) + storage.bytes
    return found


def bytes_by_row(
    held: dict[Place | None, int], rows: dict[str, float], places: tuple[Place, ...], z: Sizes
) -> tuple[dict[str, float], dict[str, float]]:
    """Of every row of the places: what is held, and ours with the differences."""
    seen: dict[str, float] = {}
    expected: dict[str, float] = {}
    for place in places:
        seen[place.row] = seen.get(place.row, 0) + held[place]
        expected.setdefault(place.row, sum(rows.get(each, 0.0) for each in names(place.row)))
        expected[place.row] += place.more(z)
    return seen, expected
