"""New answers on their way into a cache: gathered, and written in files by a thread of its own."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Location
from airflow_llmengine.worker.answer_cache.answer_files import KeptAnswer, encode_file, new_name, now
from airflow_llmengine.worker.answer_cache.answer_origin import ABOUT
from airflow_llmengine.worker.elements import encode_element
from airflow_llmengine.worker.engines.base import Answer

logger = logging.getLogger(__name__)

FILE_ANSWERS = 16_384
"""Most answers of a file that a worker writes; ``llmengine-batch cache prune`` puts small files together."""

FILE_BYTES = 32 * 2**20
"""Most bytes of their bodies, but for a single answer that is larger."""

FILE_SECONDS = 300.0
"""An answer waits about so long at most: what waits is lost to the cache, not to the job, when the worker is killed."""

FILES_AT_ONCE = 4
"""Files that may wait for a slow storage; what comes while they do is not kept."""


class AnswerKeeper:
    """Adds the answers of one attempt to a cache. It never fails, and never waits but in ``close``.

    ``keep`` is called by one thread.

    Args:
        folder: Where the files are.
        about: What its ``about.json`` says.
    """

    def __init__(self, folder: Location, about: bytes) -> None:
        self._folder = folder
        self._about = about
        self._pending: list[tuple[int, KeptAnswer]] = []
        self._pending_bytes = 0
        self._writing: set[Future[None]] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="keep-answers")
        self._told = False
        self.kept = 0
        """Answers that are in files."""
        self.lost = 0
        """Answers that could not be written."""

    def keep(self, index: int, key: bytes, answer: Answer) -> None:
        """Add an answer that is the same whenever and by whomever it is generated.

        Args:
            index: The record's place in the input. Answers are written in this order, in which a later run will
                probably ask for them.
            key: What it depends on.
            answer: It, without what its place gives it.
        """
        moment = now()
        if self._pending and moment - self._pending[0][1].written >= FILE_SECONDS:
            self._write()
        body = encode_element(_without_place(answer.body))
        self._pending.append(
            (
                index,
                KeptAnswer(key, body, answer.prompt_tokens, answer.completion_tokens, answer.truncated, moment),
            )
        )
        self._pending_bytes += len(body)
        if len(self._pending) >= FILE_ANSWERS or self._pending_bytes >= FILE_BYTES:
            self._write()

    def close(self) -> None:
        """Write what is left, and wait until it is there."""
        self._write(at_last=True)
        self._pool.shutdown(wait=True)

    def _write(self, *, at_last: bool = False) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if not pending:
            return
        if len(self._writing) >= FILES_AT_ONCE and not at_last:
            self._lose(len(pending), "the storage is too slow")
            return
        writing = self._pool.submit(self._write_file, pending)
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    def _write_file(self, pending: list[tuple[int, KeptAnswer]]) -> None:
        pending.sort(key=lambda indexed: indexed[0])
        answers = [answer for _index, answer in pending]
        name = new_name(max(answer.written for answer in answers))
        try:
            # A file is never replaced; and what a power cut would undo is generated again.
            self._folder.child(name).create(encode_file(answers), durable=False)
            # Again each time: whoever prunes a cache deletes it with the last file.
            self._folder.child(ABOUT).create(self._about, durable=False)
        except StorageError as error:
            self._lose(len(answers), str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job does not need the cache
            self._lose(len(answers), type(error).__name__)
        else:
            self.kept += len(answers)

    def _lose(self, answers: int, reason: str) -> None:
        self.lost += answers
        level = logging.DEBUG if self._told else logging.WARNING
        logger.log(level, "%d answers are not put into the cache: %s", answers, reason)
        self._told = True


def _without_place(body: dict[str, Any]) -> dict[str, Any]:
    """An API's response without what each job gives it anew; the fields stay, as their order is the output's."""
    return {**body, **{name: nothing for name, nothing in (("id", ""), ("created", 0)) if name in body}}
