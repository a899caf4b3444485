"""What is remembered by key: the whole key counts, and there is a bound."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.answers.known_outcomes import KnownOutcomes
from airflow_llmengine.worker.answers.local_file import BUFFER_BYTES, LocalFile
from airflow_llmengine.worker.engines.base import Answer


def key(number: int) -> bytes:
    return blake2b(number.to_bytes(8), digest_size=16).digest()


def answer(text: str) -> Answer:
    return Answer({"text": text}, 1, len(text))


def test_outcomes_are_found_by_their_key(open_file: Callable[..., LocalFile]) -> None:
    known = KnownOutcomes(open_file())
    fault = (RecordErrorType.CONTEXT_LENGTH_EXCEEDED, "too long")
    # Of all sizes: what is read at first, more than that, and more than waits in memory.
    texts = ["a", "b" * 4060, "c" * 4096, "d" * 70_000, "e" * (BUFFER_BYTES + 1), "f"]
    for number, text in enumerate(texts):
        known.add(key(number), answer(text))
    known.add(key(99), fault)
    assert [known.get(key(number)) for number in range(len(texts))] == [answer(text) for text in texts]
    assert known.get(key(99)) == fault
    assert known.get(key(100)) is None
    known.close()
    assert known.get(key(0)) is None


def test_the_whole_key_counts(open_file: Callable[..., LocalFile]) -> None:
    known = KnownOutcomes(open_file())
    one, other, third = (key(1)[:8] + end for end in (b"one12345", b"other123", b"third123"))
    known.add(one, answer("one"))
    known.add(other, answer("other"))
    assert (known.get(one), known.get(other), known.get(third)) == (answer("one"), answer("other"), None)


def test_beyond_its_bounds_nothing_is_remembered(open_file: Callable[..., LocalFile], tmp_path: Path) -> None:
    few = KnownOutcomes(open_file(), most=2)
    for number in range(4):
        few.add(key(number), answer("a"))
    assert [few.get(key(number)) is not None for number in range(4)] == [True, True, False, False]

    full = KnownOutcomes(open_file(1, folder=tmp_path))
    full.add(key(0), answer("a" * BUFFER_BYTES))
    full.add(key(1), answer("b"))
    assert full.get(key(0)) is not None
    assert full.get(key(1)) is None


def test_a_disk_that_gives_nothing_back_makes_it_unknown(
    open_file: Callable[..., LocalFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = open_file(folder=tmp_path)
    known = KnownOutcomes(file)
    for number in range(2):
        known.add(key(number), answer("a" * BUFFER_BYTES))
    read = os.pread
    for given in (0, 1000):
        monkeypatch.setattr("os.pread", lambda file, size, place, most=given: read(file, min(size, most), place))
        assert known.get(key(0)) is None


MILLION = """
import resource
from hashlib import blake2b
from airflow_llmengine.worker.answers.known_outcomes import KnownOutcomes
from airflow_llmengine.worker.answers.local_file import LocalFile
from airflow_llmengine.worker.engines.base import Answer

def key(number):
    return blake2b(number.to_bytes(8), digest_size=16).digest()

known = KnownOutcomes(LocalFile())
text = "word " * 60
known.add(key(1_000_000), Answer({"text": text, "number": -1}, 1, 2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range(1_000_000):
    known.add(key(number), Answer({"text": text, "number": number}, 1, 2))
for number in range(0, 1_000_000, 1000):
    assert known.get(key(number)).body["number"] == number
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_million_answers_take_twenty_odd_megabytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MILLION],
        capture_output=True,
        text=True,
        check=True,
        env={"TMPDIR": str(tmp_path), "PATH": ""},
    )
    kibibytes = int(done.stdout) // (1 if sys.platform == "linux" else 1024)
    # 12 bytes a key, what Python takes for 65,536 strings, and a buffer of 1 MiB.
    assert kibibytes < 40 * 1024
    assert list(tmp_path.iterdir()) == []
