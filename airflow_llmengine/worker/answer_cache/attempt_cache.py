"""The cache of answers as one attempt of a job uses it: opened before anything is loaded, closed when all is saved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.job_state import PinnedModel
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordError
from airflow_llmengine.storage.errors import StorageError, StorageNotFoundError
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.storage.job_directory import JobScratch
from airflow_llmengine.worker.answer_cache.answer_origin import ABOUT, AnswerOrigin
from airflow_llmengine.worker.answer_cache.consultation import Consultation
from airflow_llmengine.worker.answer_cache.kept_answers import AnswerKeeper
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers
from airflow_llmengine.worker.answers.keys import AnswerKeys, lasts
from airflow_llmengine.worker.engines.base import Answer, Engine, LoadsModel
from airflow_llmengine.worker.records import RawRecord, Record
from airflow_llmengine.worker.weights.model_files import ModelFiles, ModelIdentity, require_same
from airflow_llmengine.worker.weights.model_source import READS_THE_DATE

logger = logging.getLogger(__name__)


class AttemptCache:
    """What there is for one job, and where its new answers go.

    Args:
        folder: Where the answers of the job's origin are.
        origin: Engine, model and settings.
        model: The model that its weights will be of.
        scratch: Where the job writes down which model it began with.
        files: Finds the model, once it is loaded.
        chat_template: The request's own.
        keeper: Takes new answers; None where nothing may be written.
    """

    def __init__(
        self,
        folder: Location,
        origin: AnswerOrigin,
        model: ModelIdentity,
        *,
        scratch: JobScratch,
        files: ModelFiles | None,
        chat_template: str | None,
        keeper: AnswerKeeper | None,
    ) -> None:
        self._folder = folder
        self._origin = origin
        self._model = model
        self._scratch = scratch
        self._files = files
        self._chat_template = chat_template
        self._keeper = keeper
        self._keys = AnswerKeys()
        self._keeps_chats = True

    def consultation(self, validate: Callable[[RawRecord], Record | RecordError]) -> Consultation:
        """Asks it for the job's records; see ``Consultation``."""
        return Consultation(KnownAnswers(self._folder), validate, before_first=self._pin_model)

    def engine_started(self, engine: Engine) -> None:
        """An engine has loaded the model: see whether what it answers belongs here. Blocks for a moment."""
        if self._keeper is not None and engine.model_identity != self._model.weights:
            logger.warning(
                "new answers are not put into the cache: the model loaded is %s, and %s was expected",
                engine.model_identity,
                self._model.weights,
            )
            self._keeper = None
        if self._chat_template is not None:
            reads_date = READS_THE_DATE.search(self._chat_template) is not None
        else:
            reads_date = self._files is not None and self._files.find().template_reads_date()
        if reads_date:
            logger.info("answers to chats are not put into the cache: the chat template writes the date into each")
            self._keeps_chats = False

    def keep(self, record: Record, answer: Answer) -> None:
        """Take a new answer, if it will be the same at any time."""
        if self._keeper is None or (isinstance(record.request, ChatCompletionV2Request) and not self._keeps_chats):
            return
        key = self._keys.of(record) if lasts(record) else None
        if key is not None:
            self._keeper.keep(record.index, key, answer)

    def close(self) -> None:
        """Write what was taken and is not written yet. Blocks until it is."""
        if self._keeper is not None:
            self._keeper.close()
            if self._keeper.kept:
                logger.info("%d new answers are in the cache", self._keeper.kept)

    def _pin_model(self) -> None:
        """Before an answer of the model is given: the job has begun with that one then, also if none is loaded."""
        found = PinnedModel(
            model_identity=self._model.weights, engine=self._origin.engine, engine_version=self._origin.engine_version
        )
        require_same(self._model.weights, self._scratch.pin_model(found).model_identity)


def open_cache(
    storage: Storage,
    cache_path: str,
    request: CreateBatchCompletionsV1Request,
    *,
    engine: Engine,
    engine_args: Mapping[str, Any],
    files: ModelFiles,
    scratch: JobScratch,
) -> AttemptCache | None:
    """Open the cache for a job; None where it can't be told which model answers.

    Args:
        storage: Where it is, with credentials.
        cache_path: The cache.
        request: The job.
        engine: One that is not started.
        engine_args: Its further arguments.
        files: Finds the job's model.
        scratch: The job's.

    Raises:
        StorageError: It can't be listed, a file stands in its place, or there is no such bucket.
        ModelNotFoundError, ModelChangedError: See ``ModelFiles.identify``.
    """
    # Who gave a path meant it: one that is wrong is told before anything is paid for.
    storage.location(cache_path).folders()
    loads = isinstance(engine, LoadsModel)
    model = files.identify() if loads else _identity_of(engine)
    if model is None:
        logger.warning("the cache of answers is not used: it can't be told which model this is before it is loaded")
        return None
    origin = AnswerOrigin.of(
        request,
        engine=engine.name,
        engine_version=engine.version,
        model_content=model.content,
        engine_args=engine_args,
    )
    folder = storage.location(cache_path).child(origin.folder_name)
    keeper: AnswerKeeper | None = AnswerKeeper(folder, origin.about())
    try:
        folder.child(ABOUT).create(origin.about(), durable=False)
    except StorageNotFoundError:
        # It is no folder, and so no cache. Whatever else keeps answers from being written, others can be read.
        raise
    except StorageError as error:
        logger.warning("new answers are not put into the cache: %s", error)
        keeper = None
    return AttemptCache(
        folder,
        origin,
        model,
        scratch=scratch,
        files=files if loads else None,
        chat_template=request.model_cfg.chat_template,
        keeper=keeper,
    )


def _identity_of(engine: Engine) -> ModelIdentity | None:
    """That of an engine without weights."""
    identity = engine.model_identity
    return None if identity is None else ModelIdentity(identity, identity)
