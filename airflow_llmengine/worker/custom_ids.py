"""Which lines of an OpenAI batch file have a ``custom_id`` that another has, found while the output is written.

Lines of one name are all answered: that loses no paid work, and ``id`` tells the results apart. But who joins results
to lines by that name must hear of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import nsmallest

_BEFORE = b'","custom_id":"'
_AFTER = b'","response":'
"""What ``ElementWriter`` writes around a name. A quote inside a name is escaped, so the first of these ends it."""

_BEGIN = b'{"id":"batch_req_'
_WITHIN = 400
"""Bytes in which the name begins; what is before it is our own, and shorter."""

_TABLES = 256
"""A table is looked through at a time, so that only one stands in memory as Python objects."""

SHOWN_PAIRS = 5
"""Of the repeated names, so many are told, by the places of two of their records."""


class CustomIds:
    """Remembers of each name 8 bytes of a hash and its record's index: 16 bytes a record, however long the names are.

    Two names with one hash count as one; in ten million names that happens once in a few hundred thousand jobs.
    """

    def __init__(self) -> None:
        self._hashes = [array("q") for _ in range(_TABLES)]
        self._indices = [array("q") for _ in range(_TABLES)]

    def add(self, first: int, elements: Sequence[bytes]) -> None:
        """Note the names of consecutive elements of the output.

        Args:
            first: Index of the first one's record.
            elements: The elements; those that are no batch lines, or have no name, are left out.
        """
        hashes, indices = self._hashes, self._indices
        for index, element in enumerate(elements, first):
            if not element.startswith(_BEGIN):
                continue
            start = element.find(_BEFORE, 0, _WITHIN)
            if start >= 0:
                start += len(_BEFORE)
                value = hash(element[start : element.find(_AFTER, start)])
                table = value & (_TABLES - 1)
                hashes[table].append(value)
                indices[table].append(index)

    @property
    def repeated(self) -> int:
        """How many records have a name that one before them has."""
        return sum(len(hashes) - len(set(hashes)) for hashes in self._hashes)

    def pairs(self) -> list[tuple[int, int]]:
        """The first few repeated names: indices of the name's first record, and of one that has it again."""
        return nsmallest(SHOWN_PAIRS, self._repetitions(), key=lambda pair: pair[1])

    def _repetitions(self) -> Iterator[tuple[int, int]]:
        for hashes, indices in zip(self._hashes, self._indices, strict=True):
            seen: dict[int, int] = {}
            for value, index in zip(hashes, indices, strict=True):
                earlier = seen.setdefault(value, index)
                if earlier != index:
                    yield earlier, index
