"""What answers were made by: the part of what they depend on that all records of a job share.

Each origin has a folder of its own in a cache, named by a hash, so that an answer of another model, of other settings
or of another version of the engine is never found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_llmengine.spec.identity import digest, settings_of_answers
from airflow_llmengine.spec.job_state import RESULT_FORMAT_VERSION, StateDocument
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.worker.answer_cache.answer_files import FORMAT_VERSION

ABOUT = "about.json"
"""Beside the files of an origin: what it is, for people and ``llmengine-batch cache stats``."""

FOLDER_PREFIX = f"v{FORMAT_VERSION}-"

_DIGEST_LENGTH = 32


@dataclass(frozen=True, slots=True)
class AnswerOrigin:
    """Engine, model and settings that answers were made by."""

    engine: str
    engine_version: str
    """A part of it: another version may write other answers, and that is what people take one for."""
    model: str
    """As results call it."""
    model_content: str
    """Names all files of the model: see ``ModelIdentity``."""
    settings: Mapping[str, Any]
    """What else of a job can change an answer."""

    @classmethod
    def of(
        cls,
        request: CreateBatchCompletionsV1Request,
        *,
        engine: str,
        engine_version: str,
        model_content: str,
        engine_args: Mapping[str, Any],
    ) -> AnswerOrigin:
        """That of a job."""
        return cls(
            engine=engine,
            engine_version=engine_version,
            model=request.model_cfg.served_model_name or request.model_cfg.model,
            model_content=model_content,
            settings=settings_of_answers(request, engine_args),
        )

    @property
    def folder_name(self) -> str:
        """Name of its folder in a cache."""
        everything = {
            "engine": self.engine,
            "engine_version": self.engine_version,
            "model": self.model_content,
            "result_format_version": RESULT_FORMAT_VERSION,
            "settings": self.settings,
        }
        return FOLDER_PREFIX + digest(everything)[:_DIGEST_LENGTH]

    def about(self) -> bytes:
        """The content of ``ABOUT``. Settings are not in it: a chat template is the user's text."""
        return AboutOrigin(
            engine=self.engine, engine_version=self.engine_version, model=self.model, model_identity=self.model_content
        ).encode()


class AboutOrigin(StateDocument):
    """``about.json``, written by the first worker that has an answer of the origin to keep."""

    engine: str
    engine_version: str
    model: str
    model_identity: str

    def encode(self) -> bytes:
        """As it is written."""
        return (json.dumps(self.model_dump(), indent=1) + "\n").encode()
