"""What came of the records of this attempt so far, by key, on the local disk."""

from __future__ import annotations

from airflow_llmengine.worker.answers.key_table import KeyTable
from airflow_llmengine.worker.answers.keys import KEY_BYTES
from airflow_llmengine.worker.answers.local_file import LocalFile
from airflow_llmengine.worker.answers.outcomes import Outcome, decode_outcome, encode_outcome

MOST_OUTCOMES = 2**24
"""Keys that are held in memory: about 250 MB of them."""

_SIZE_BYTES = 4

_HEAD_BYTES = KEY_BYTES + _SIZE_BYTES

_READ_BYTES = 4096
"""What is read at first: mostly it is the whole."""


class KnownOutcomes:
    """Remembers what it has room for; what it has not is generated anew. One thread.

    Args:
        file: Where outcomes stand, each behind its key and its size.
        most: How many are remembered.
    """

    def __init__(self, file: LocalFile, most: int = MOST_OUTCOMES) -> None:
        self._file = file
        self._most = most
        self._table = KeyTable()

    def add(self, key: bytes, outcome: Outcome) -> None:
        """Remember what came of the records of a key, which must be new."""
        if self._file.full or len(self._table) >= self._most:
            return
        data = encode_outcome(outcome)
        place = self._file.append(key + len(data).to_bytes(_SIZE_BYTES) + data)
        if place is not None:
            self._table.add(key, place)

    def get(self, key: bytes) -> Outcome | None:
        """What came of the records of a key, if it is known. The whole key is compared."""
        for place in self._table.find(key):
            entry = self._file.read(place, _READ_BYTES)
            if entry[:KEY_BYTES] != key:
                continue
            end = _HEAD_BYTES + int.from_bytes(entry[KEY_BYTES:_HEAD_BYTES])
            if end > len(entry):
                entry += self._file.read(place + len(entry), end - len(entry))
            if len(entry) >= end:
                return decode_outcome(entry[_HEAD_BYTES:end])
        return None

    def close(self) -> None:
        """Free the disk."""
        self._file.close()
