"""A job's model, from wherever the request says, as files of this machine."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.base import ModelChangedError, ModelNotFoundError
from airflow_llmengine.worker.weights.checkpoint import list_checkpoint
from airflow_llmengine.worker.weights.fetch_progress import Say, say_nothing
from airflow_llmengine.worker.weights.folder import fetch_checkpoint, model_cache
from airflow_llmengine.worker.weights.hub import HubRepository, Snapshot, fetch_snapshot, find_commit
from airflow_llmengine.worker.weights.local import checkpoint_digest, dense_digest, require_model
from airflow_llmengine.worker.weights.model_source import ModelSource

logger = logging.getLogger(__name__)

_COMMIT = re.compile("[0-9a-f]{40}")


def _nothing_pinned() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What names a model before any of its weights are here."""

    weights: str
    """What ``ModelSource.identity`` will be."""
    content: str
    """Names all that the engine reads of model and tokenizer, for answers that are kept across jobs."""


class ModelFiles:
    """Finds the model of one job, and fetches it first if it is not on this machine.

    ``checkpoint_path`` is a directory here, or the URL of a folder in a store. ``model`` alone may be a directory too;
    otherwise it is an id on the Hugging Face hub.

    Args:
        storage: Where a checkpoint by URL is, with credentials.
        request: The job.
        pinned: Gives the identity of the weights that the job began with, if a worker has loaded some: a model of the
            hub is asked for at that commit, and others are refused before they are fetched.
        say: Is told, in a few words, how far a fetch is; and the empty string at its end.
    """

    def __init__(
        self,
        storage: Storage,
        request: CreateBatchCompletionsV1Request,
        *,
        pinned: Callable[[], str | None] = _nothing_pinned,
        say: Say = say_nothing,
    ) -> None:
        self._storage = storage
        self._model = request.model_cfg
        self._pinned = pinned
        self._say = say
        self._since = time.time()
        self._found: ModelSource | None = None
        self._commit: str | None = None
        """The commit that ``identify`` has told of: ``find`` gives no other."""
        self._lock = threading.Lock()

    def find(self) -> ModelSource:
        """Find it. Blocks, for as long as it takes to fetch; a second call gives the same at once.

        Raises:
            ModelNotFoundError: There is no such model.
            ModelChangedError: It is not the one that the job began with.
            StorageError: It can't be fetched.
        """
        with self._lock:
            if self._found is None:
                self._found = self._find()
            return self._found

    def identify(self) -> ModelIdentity | None:
        """Tell which model it is, without fetching weights; None if that can't be told.

        What ``find`` gives later is that model, or ``ModelChangedError``, once the identity of the weights is pinned.

        Raises:
            ModelNotFoundError: There is no such model.
            ModelChangedError: It is not the one that the job began with.
            StorageError: It can't be told just now.
        """
        with self._lock:
            pinned = self._pinned()
            weights, content = self._identify_model(pinned)
            if weights is None or content is None:
                return None
            require_same(weights, pinned)
            tokenizer = self._identify_tokenizer()
            return None if tokenizer is None else ModelIdentity(weights, f"{content} {tokenizer}".strip())

    def _identify_model(self, pinned: str | None) -> tuple[str | None, str | None]:
        """Identity of the weights, and of all of the model's files."""
        place = self._model.checkpoint_path
        if place is not None and not self._storage.location(place).is_local:
            identity = list_checkpoint(self._storage, place, self._model.load_format).identity
            return identity, identity
        directory = self._directory()
        if directory is not None:
            require_model(*directory)
            return checkpoint_digest(directory[0]), dense_digest(directory[0])
        revision = _commit_of(pinned) or self._model.revision
        self._commit = find_commit(HubRepository(self._model.model, revision, "model_config.model"), since=self._since)
        return self._commit, self._commit

    def _identify_tokenizer(self) -> str | None:
        """Identity of the tokenizer's files; empty where they are the model's own, and None if it can't be told."""
        name, revision = self._model.tokenizer, self._model.tokenizer_revision
        if name is None and (revision is None or self._model.checkpoint_path or self._directory() is not None):
            # A folder has no revisions: a revision of one is refused when it is loaded.
            return ""
        if name is not None and Path(name).is_dir():
            return dense_digest(Path(name))
        repository = HubRepository(name or self._model.model, revision, "model_config.tokenizer", weights=False)
        return find_commit(repository, since=self._since)

    def _directory(self) -> tuple[Path, str] | None:
        """The folder of this machine that the model is, and the field that names it; None: it is from the hub."""
        place = self._model.checkpoint_path
        if place is not None:
            # As it was written where it is a path: a link that is followed, or a folder seen from here.
            url = self._storage.location(place).url
            return Path(url if "://" in place else place), "model_config.checkpoint_path"
        directory = Path(self._model.model)
        if directory.is_dir() or directory.is_absolute() or self._model.model.startswith("."):
            return directory, "model_config.model"
        return None

    def _find(self) -> ModelSource:
        pinned = self._pinned()
        place = self._model.checkpoint_path
        if place is not None and not self._storage.location(place).is_local:
            checkpoint = list_checkpoint(self._storage, place, self._model.load_format)
            require_same(checkpoint.identity, pinned)
            folder = fetch_checkpoint(checkpoint, model_cache(), say=self._say)
            return ModelSource(folder, checkpoint.identity, self._tokenizer())
        directory = self._directory()
        return self._from_hub(pinned) if directory is None else self._local(*directory, pinned)

    def _local(self, directory: Path, field: str, pinned: str | None) -> ModelSource:
        require_model(directory, field)
        _require_none(self._model.revision, "model_config.revision")
        identity = checkpoint_digest(directory)
        require_same(identity, pinned)
        return ModelSource(directory, identity, self._tokenizer())

    def _from_hub(self, pinned: str | None) -> ModelSource:
        # A branch may have moved on; the job stays with what it began with.
        snapshot = self._snapshot(_commit_of(pinned) or self._commit or self._model.revision)
        later = _commit_of(self._pinned())
        if later not in (None, snapshot.commit):
            # It moved on while this worker fetched, and another was quicker.
            snapshot = self._snapshot(later)
        return ModelSource(snapshot.directory, snapshot.commit, self._tokenizer(self._model.model))

    def _snapshot(self, revision: str | None) -> Snapshot:
        repository = HubRepository(
            self._model.model, revision, field="model_config.model", load_format=self._model.load_format
        )
        return fetch_snapshot(repository, since=self._since, say=self._say)

    def _tokenizer(self, repository_of_model: str | None = None) -> Path | None:
        """The tokenizer's folder; None where it is in the model's own.

        Args:
            repository_of_model: The model's id on the hub, if it is from there: its tokenizer may be of another
                revision.
        """
        name, revision = self._model.tokenizer, self._model.tokenizer_revision
        field = "model_config.tokenizer" if name else "model_config.tokenizer_revision"
        name = name or (repository_of_model if revision else None)
        if name is None:
            _require_none(revision, field)
            return None
        if Path(name).is_dir():
            _require_none(revision, "model_config.tokenizer_revision")
            return Path(name)
        repository = HubRepository(name, revision, field=field, weights=False)
        return fetch_snapshot(repository, since=self._since, say=self._say).directory


def _require_none(revision: str | None, field: str) -> None:
    """Refuse a revision of what is a folder. Whether ``model`` or ``tokenizer`` names one, is only seen where it is."""
    if revision:
        raise ModelNotFoundError(f"{field}: the files are a folder here, which has no revisions; leave it out")


def _commit_of(pinned: str | None) -> str | None:
    return pinned if pinned is not None and _COMMIT.fullmatch(pinned) else None


def require_same(found: str | None, pinned: str | None) -> None:
    """Make sure that the weights are those that the job began with; ``pinned``: None if there are none yet.

    Raises:
        ModelChangedError: They are others.
    """
    if pinned is not None and found != pinned:
        raise ModelChangedError(
            f"the model's weights are {found}, and an earlier attempt of this job used {pinned}: give the earlier "
            "weights back, or make the output anew with if_done='regenerate' (--if-done regenerate)"
        )
