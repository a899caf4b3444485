"""Where in a file the entry of each key begins, in 14 bytes of memory a key or a few more."""

from __future__ import annotations

from collections.abc import Iterator

_PLACE_BYTES = 6
"""A file of 256 TiB."""

_TAIL = slice(2, 8)
"""The part of a key that is in its bucket; what is before it is the bucket's number."""

_ENTRY_BYTES = _TAIL.stop - _TAIL.start + _PLACE_BYTES


class KeyTable:
    """Places by key. Two keys with the same first 8 bytes are not told apart: whoever reads the entry compares it.

    A bucket is a string of bytes, which is searched: a few hundred bytes for a million keys, in a microsecond.
    """

    def __init__(self) -> None:
        self._buckets: list[bytearray | None] = [None] * (1 << 16)
        self._entries = 0

    def __len__(self) -> int:
        """How many keys were added."""
        return self._entries

    def add(self, key: bytes, place: int) -> None:
        """Note where the entry of a key begins.

        Args:
            key: At least 8 bytes, each as likely as any other.
            place: Bytes from the beginning of the file.
        """
        number = key[0] << 8 | key[1]
        entry = key[_TAIL] + place.to_bytes(_PLACE_BYTES)
        bucket = self._buckets[number]
        if bucket is None:
            self._buckets[number] = bytearray(entry)
        else:
            bucket += entry
        self._entries += 1

    def find(self, key: bytes) -> Iterator[int]:
        """The places at which the key's entry may be: mostly none, or the one."""
        bucket = self._buckets[key[0] << 8 | key[1]]
        if bucket is None:
            return
        tail = key[_TAIL]
        at = bucket.find(tail)
        while at >= 0:
            if at % _ENTRY_BYTES == 0:
                yield int.from_bytes(bucket[at + len(tail) : at + _ENTRY_BYTES])
            at = bucket.find(tail, at + 1)
