"""Made-up answers, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.worker.answer_cache.answer_files import KeptAnswer, encode_file, new_name
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers

WRITTEN = 1_700_000_000.0


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def answer(number: int, *, written: float = WRITTEN, said: str = "") -> KeptAnswer:
    body = f'{{"text":"{said or f"answer {number}"}"}}'.encode()
    return KeptAnswer(key(number), body, number % 7, number % 5, number % 3 == 0, written)


def put(folder: Location, numbers: Iterable[int], *, written: float = WRITTEN, said: str = "") -> Location:
    """A file of these answers."""
    file = folder.child(new_name(written))
    assert file.create(encode_file([answer(number, written=written, said=said) for number in numbers]))
    return file


def find(folder: Location, numbers: Iterable[int]) -> dict[int, KeptAnswer]:
    """What a reader that begins now finds."""
    known = KnownAnswers(folder)
    known.load()
    return look_up(known, numbers)


def look_up(known: KnownAnswers, numbers: Iterable[int]) -> dict[int, KeptAnswer]:
    asked = list(numbers)
    found: dict[int, KeptAnswer] = {}
    known.look_up([key(number) for number in asked], lambda position, got: found.update({asked[position]: got}))
    return found


def local(path: Path) -> Location:
    return Storage().location(str(path))
