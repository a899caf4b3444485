"""Reading how large a job's model is, before anything of it is loaded: its config, and how many bytes its weights are.

For whoever plans a job: the machine that reads need not be the one on which the model will run. Only small files are
read, and nothing is kept.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_llmengine.spec.hardware.inference import Model
from airflow_llmengine.spec.hardware.model_facts import ModelFactsError, model_facts
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.storage.urls import redact

CONFIG = "config.json"
WEIGHTS_INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"

HUB_TIMEOUT_SECONDS = 5.0
"""How long the hub may take to begin an answer. It is asked once or twice, and never again."""

MOST_BYTES = 64 * 2**20
"""Indexes of the largest models have some tens of megabytes; a larger file is not what its name says."""

_HUB_NAME = re.compile(r"[\w][\w.-]*(?:/[\w][\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"[\w][\w.-]*(?:/[\w][\w.-]*)*", re.ASCII)

logger = logging.getLogger(__name__)

_Read = Callable[[str], bytes | None]
"""Gives a file of the model by its name; None if there is none."""
_Size = Callable[[str], int | None]
"""Gives a file's size."""


class _UnreadableError(Exception):
    """The config can't be read; the message is a clause that says why."""

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


def read_model(storage: Storage, request: CreateBatchCompletionsV1Request) -> Model:
    """Find out what can be known of a job's model here.

    ``checkpoint_path`` is a directory on this machine or the URL of a folder; ``model`` alone may be a directory too.
    Otherwise it is looked for in the Hugging Face hub's cache on this machine, and then, if the package
    ``huggingface_hub`` is installed, on the hub. Never raises: what can't be read is said in the result.
    """
    model = request.model_cfg
    try:
        if model.checkpoint_path is not None:
            return _in_folder(storage, model.checkpoint_path)
        directory = Path(model.model)
        if directory.is_absolute() or model.model.startswith(".") or (directory / CONFIG).is_file():
            return _in_folder(storage, model.model)
        return _cached(storage, model) or _on_the_hub(model)
    except _UnreadableError as error:
        return Model(None, str(error), may_pass=error.may_pass)


def _in_folder(storage: Storage, path: str) -> Model:
    try:
        folder = storage.location(path)
        return _model(_reader(folder), _sizer(folder), f"{CONFIG} in {folder}", lambda: _missing(folder))
    except StorageError as error:
        reason = f"{CONFIG} could not be read: {str(error).rstrip('.')}"
        raise _UnreadableError(reason, may_pass=error.retry_helps) from error
    except ValueError as error:
        raise _UnreadableError(f"{redact(path)} names no folder") from error


def _missing(folder: Location) -> str:
    """Why there is no config; ``StorageError`` where there is not even a bucket."""
    if not folder.is_local and next(iter(folder.walk()), None) is None:
        return f"there is nothing below {folder}: check its spelling"
    return f"{folder} has no {CONFIG}" + (" here" if folder.is_local else "")


def _reader(folder: Location) -> _Read:
    def read(name: str) -> bytes | None:
        place = folder.child(name)
        found = place.info()
        if found is None:
            return None
        if found.size > MOST_BYTES:
            raise _UnreadableError(f"{place} has {found.size} bytes, more than such a file ever has")
        return place.read_bytes()

    return read


def _sizer(folder: Location) -> _Size:
    def size(name: str) -> int | None:
        found = folder.child(name).info()
        return None if found is None else found.size

    return size


def _cached(storage: Storage, model: CreateBatchCompletionsV1ModelConfig) -> Model | None:
    """The model in the hub's cache on this machine, in the layout that all of its libraries share."""
    revision = model.revision or "main"
    if not _HUB_NAME.fullmatch(model.model) or not _REVISION.fullmatch(revision) or ".." in revision:
        raise _UnreadableError(f"{model.model} is neither a directory here nor an id of the Hugging Face hub")
    repository = _hub_cache() / f"models--{model.model.replace('/', '--')}"
    try:
        reference = repository / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        snapshot = repository / "snapshots" / commit
        if not _REVISION.fullmatch(commit) or not (snapshot / CONFIG).is_file():
            return None
    except (OSError, UnicodeError):
        return None
    return _in_folder(storage, str(snapshot))


def _hub_cache() -> Path:
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    home = os.environ.get("HF_HOME")
    if not home:
        home = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(home).expanduser() / "hub"


def _on_the_hub(model: CreateBatchCompletionsV1ModelConfig) -> Model:
    """Ask the hub itself: with one short question for each file, since its library's own would be tried for long."""
    try:
        from huggingface_hub import constants, get_session, get_token, hf_hub_url
    except ImportError:
        raise _UnreadableError(
            f"{model.model} is not in the hub's cache here, and the package huggingface_hub is not installed"
        ) from None

    if constants.HF_HUB_OFFLINE:
        raise _UnreadableError(
            f"{model.model} is not in the hub's cache here, and HF_HUB_OFFLINE forbids to ask the hub"
        )

    def ask(name: str, method: str) -> Any:
        url = hf_hub_url(model.model, name, revision=model.revision, endpoint=os.environ.get("HF_ENDPOINT"))
        token = get_token()
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            answer = getattr(get_session(), method)(url, headers=headers, timeout=HUB_TIMEOUT_SECONDS)
        except Exception as error:
            # Not narrower: which HTTP library raises depends on the version of huggingface_hub.
            logger.debug("the hub", exc_info=True)
            raise _UnreadableError(
                f"{model.model} is not in the hub's cache here, and the hub can't be reached ({type(error).__name__})",
                may_pass=True,
            ) from error
        if answer.status_code in (401, 403):
            raise _UnreadableError(
                f"the hub refuses {model.model} ({answer.status_code}): it is not there, or private or gated, and "
                "HF_TOKEN here has no access"
            )
        if answer.status_code == 404:
            return None
        if answer.status_code >= 400:
            raise _UnreadableError(f"the hub answers {answer.status_code} for {name} of {model.model}", may_pass=True)
        return answer

    def read(name: str) -> bytes | None:
        answer = ask(name, "get")
        return None if answer is None else bytes(answer.content)

    def size(name: str) -> int | None:
        answer = ask(name, "head")
        told = "" if answer is None else answer.headers.get("x-linked-size") or answer.headers.get("content-length", "")
        return int(told) if told.isdecimal() else None

    named = model.model if model.revision is None else f"{model.model} at {model.revision}"
    return _model(read, size, f"{CONFIG} of {named} on the hub", lambda: f"{named} has no {CONFIG} on the hub")


def _model(read: _Read, size: _Size, source: str, missing: Callable[[], str]) -> Model:
    text = read(CONFIG)
    if text is None:
        raise _UnreadableError(missing())
    config = _object(text)
    if config is None:
        raise _UnreadableError(f"{source} is not a JSON object")
    index = read(WEIGHTS_INDEX)
    stored = size(WEIGHTS) if index is None else _total_size(index)
    try:
        return Model(model_facts(config, stored), source)
    except ModelFactsError as error:
        raise _UnreadableError(f"{source} is not understood: {error}") from None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _total_size(index: bytes) -> int | None:
    metadata = (_object(index) or {}).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(total) if isinstance(total, int | float) and not isinstance(total, bool) and 0 < total < 2**60 else None
