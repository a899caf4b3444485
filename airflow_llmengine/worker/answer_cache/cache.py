"""The cache of answers as one attempt of a job uses it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_llmengine.storage.errors import StorageDeniedError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.answer_cache.answer_origin import ABOUT, AnswerOrigin
from airflow_llmengine.worker.answer_cache.kept_answers import AnswerKeeper
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """What there is, and where new answers go."""

    known: KnownAnswers
    keeper: AnswerKeeper | None
    """None where nothing may be written: then it is only read."""


def open_cache(storage: Storage, cache_path: str, origin: AnswerOrigin) -> AnswerCache:
    """Open the cache for a job.

    Raises:
        StorageError: It can't be listed, or its store can't be written to for another reason than that it is denied.
    """
    folder = storage.location(cache_path).child(origin.folder_name)
    # Who gave a path meant it: one that is wrong is told before anything is paid for.
    folder.list()
    try:
        folder.child(ABOUT).create(origin.about(), durable=False)
    except StorageDeniedError as error:
        logger.warning("new answers are not put into the cache: %s", error)
        return AnswerCache(KnownAnswers(folder), None)
    return AnswerCache(KnownAnswers(folder), AnswerKeeper(folder, origin.about()))
