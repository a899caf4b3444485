"""Where in the files each key is: sorted runs on this machine's disk, mapped into memory as they are looked into.

Memory does not grow with the number of answers: what is being sorted is bounded, and pages of a mapped file are the
kernel's to take back. 16 bytes of disk an answer.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy

RUN_ANSWERS = 2**21
"""Answers that are sorted at once: 32 MiB, and three times as much while they are."""

Numbers = numpy.ndarray[Any, numpy.dtype[numpy.uint64]]


class KeyIndex:
    """Places by key. ``add`` everything, then ``finish``, then ``find``.

    A key is known by its first half: two in 2**64 that share it are told apart where the answer is read.
    """

    def __init__(self, run_answers: int = RUN_ANSWERS) -> None:
        self._run_answers = run_answers
        self._pending: list[tuple[Numbers, Numbers]] = []
        self._pending_answers = 0
        self._runs: list[tuple[Numbers, Numbers]] = []
        self.answers = 0

    def add(self, keys: Numbers, file: int) -> None:
        """Add the keys of a file, in the order of its rows.

        Args:
            keys: Two numbers each.
            file: Number of the file.
        """
        places = numpy.arange(len(keys), dtype=numpy.uint64) | numpy.uint64(file << 32)
        for start in range(0, len(keys), self._run_answers):
            part = slice(start, start + self._run_answers)
            self._pending.append((keys[part, 0].copy(), places[part]))
            self._pending_answers += len(places[part])
            if self._pending_answers >= self._run_answers:
                self._sort()
        self.answers += len(keys)

    def finish(self) -> None:
        """Nothing more is added."""
        if self._pending:
            self._sort()

    def _sort(self) -> None:
        keys = numpy.concatenate([keys for keys, _places in self._pending])
        places = numpy.concatenate([places for _keys, places in self._pending])
        self._pending, self._pending_answers = [], 0
        order = numpy.argsort(keys, kind="stable")
        self._runs.append((_on_disk(keys[order]), _on_disk(places[order])))

    def find(self, keys: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Look keys up.

        Args:
            keys: First halves.

        Returns:
            Of those that were found: their positions in ``keys``, their files, and their rows. One place of each.
        """
        order = numpy.argsort(keys, kind="stable")
        wanted = keys[order]
        places = numpy.zeros(len(keys), numpy.uint64)
        found = numpy.zeros(len(keys), numpy.bool_)
        for run_keys, run_places in self._runs:
            at = numpy.searchsorted(run_keys, wanted)
            at[at == len(run_keys)] = 0
            here = (run_keys[at] == wanted) & ~found
            places[here] = run_places[at[here]]
            found |= here
        positions = order[found].astype(numpy.uint64)
        return positions, places[found] >> numpy.uint64(32), places[found] & numpy.uint64(2**32 - 1)


def _on_disk(values: Numbers) -> Numbers:
    # It has no name, so nothing is left whatever ends this process.
    with tempfile.TemporaryFile(prefix="llmengine-") as file:
        values.tofile(file)
        file.flush()
        return numpy.memmap(file, numpy.uint64, "r", shape=values.shape)
