"""Models of the Hugging Face hub: fetched into its cache by one worker, with as few requests as can be.

The hub counts requests. So among workers that share a cache one asks and the others take what it found; what is in
the cache at a known commit is not asked for at all; and where the hub says that it is too much, the wait is as long as
it says, and random beyond that, so that workers don't come back all at once.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from airflow_llmengine.worker.weights.fetch_progress import FetchProgress, Say, say_nothing
from airflow_llmengine.worker.weights.hub_errors import explain, is_busy, is_unreachable, seconds_asked_for
from airflow_llmengine.worker.weights.lock import one_at_a_time
from airflow_llmengine.worker.weights.needed import CONFIG_FILES, needed_files, without_weights

logger = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_TIMEOUT_SECONDS = 10.0
"""How long the hub may take to say whether it has a model."""

BUSY_SECONDS = 900.0
"""How long a hub that has no time is asked again. Its windows of requests are of five minutes."""

UNREACHABLE_ATTEMPTS = 3
"""How often a hub that does not answer at all is asked."""

LONGEST_WAIT_SECONDS = 60.0
"""Between two requests, where the hub does not say how long."""

FILES_AT_ONCE = 4

LEFTOVER_SECONDS = 3600.0
"""Unfinished files in the cache that nobody has written to for so long are of a process that was killed."""

FRESH_SECONDS = 60.0
"""Workers that begin together begin within about so many seconds. What one of them has asked, the others need not."""

DEFAULT_REVISION = "main"

_COMMIT = re.compile("[0-9a-f]{40}")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", *CONFIG_FILES)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository of the hub at one commit, in the local cache."""

    directory: Path
    commit: str


@dataclass(frozen=True, slots=True)
class HubRepository:
    """What is wanted of the hub."""

    name: str
    """Its id, ``org/name``."""
    revision: str | None
    """Branch, tag or commit; None: the hub's main branch."""
    field: str
    """The field of the request that names it, for messages."""
    weights: bool = True
    """False: only what a tokenizer needs."""
    load_format: str | None = None
    """That of ``model_config``."""

    @property
    def is_fixed(self) -> bool:
        """Whether the revision is a commit, which never means anything else."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def needed(self, names: list[str]) -> list[str]:
        """Those of its files that are fetched."""
        return needed_files(names, self.load_format) if self.weights else without_weights(names)


def fetch_snapshot(wanted: HubRepository, *, since: float, say: Say = say_nothing) -> Snapshot:
    """Make sure that a repository's files are in the local cache. Blocks until they are.

    Nothing is asked of the hub when it is switched off (``HF_HUB_OFFLINE``), when all files of the wanted commit are
    here, or when another worker has asked for the same branch since this one began, or just before. When the hub can't
    be reached, what the cache has of the revision is taken.

    Args:
        wanted: The repository.
        since: When this worker began, in seconds since the epoch.
        say: Is told how far it is.

    Raises:
        ModelNotFoundError: There is none, it may not be read, or it is neither here nor within reach.
        StorageError: The hub has had no time for too long, or the files can't be put into the cache.
    """
    # The client comes with the engine, and no other part of the worker needs it.
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    named = f"{wanted.field}: {wanted.name!r}"
    try:
        validate_repo_id(wanted.name)
    except HFValidationError as error:
        raise explain(error, named=named, revision=wanted.revision) from error
    cache = _RepositoryCache(Path(constants.HF_HUB_CACHE), wanted)
    if constants.HF_HUB_OFFLINE:
        return cache.require_any(named)
    known = cache.find(since)
    if known is not None:
        return known
    try:
        with cache.locked():
            return cache.find(since) or _fetch(wanted, cache, say)
    except Exception as error:
        # Not narrower: which HTTP library raises depends on the version of the hub's client.
        kept = cache.any() if is_busy(error) or is_unreachable(error) else None
        if kept is None:
            raise explain(error, named=named, revision=wanted.revision) from error
        logger.warning(
            "the Hugging Face hub can't be asked for %s: commit %s, which the cache has, is used",
            wanted.name,
            kept.commit,
        )
        return kept


def find_commit(wanted: HubRepository, *, since: float) -> str | None:
    """Which commit the wanted revision is, without fetching a file of it; None if neither the hub nor the cache tells.

    Args:
        wanted: The repository.
        since: When this worker began, in seconds since the epoch.

    Raises:
        ModelNotFoundError: There is none, or it may not be read.
        StorageError: The hub refuses to be asked.
    """
    from huggingface_hub import constants, model_info

    if wanted.is_fixed:
        return wanted.revision
    cache = _RepositoryCache(Path(constants.HF_HUB_CACHE), wanted)
    if not constants.HF_HUB_OFFLINE:
        try:
            with cache.locked("commit"):
                commit = cache.find_commit(since)
                if commit is None:
                    asked = time.time()
                    info = _patiently(
                        lambda: model_info(wanted.name, revision=wanted.revision, timeout=ANSWER_TIMEOUT_SECONDS)
                    )
                    commit = str(info.sha)
                    cache.note_commit(commit, asked)
                return commit
        except Exception as error:
            # Not narrower: as in ``fetch_snapshot``.
            if not (is_busy(error) or is_unreachable(error)):
                raise explain(error, named=f"{wanted.field}: {wanted.name!r}", revision=wanted.revision) from error
    kept = cache.any()
    return None if kept is None else kept.commit


def _fetch(wanted: HubRepository, cache: _RepositoryCache, say: Say) -> Snapshot:
    from huggingface_hub import model_info, snapshot_download

    asked = time.time()
    info: Any = _patiently(lambda: model_info(wanted.name, revision=wanted.revision, timeout=ANSWER_TIMEOUT_SECONDS))
    commit = str(info.sha)
    names = wanted.needed([file.rfilename for file in info.siblings or []])
    cache.delete_leftovers()
    _without_bars()
    there = cache.bytes_stored()
    what = f"{wanted.name} at commit {commit} from the Hugging Face hub"
    with FetchProgress(what, None, say=say, measured=lambda: cache.bytes_stored() - there).told():
        directory = _patiently(
            lambda: snapshot_download(
                wanted.name,
                revision=commit,
                # As patterns in which nothing is special.
                allow_patterns=[glob.escape(name) for name in names],
                max_workers=FILES_AT_ONCE,
            )
        )
    cache.note(commit, names, asked)
    return Snapshot(Path(directory), commit)


def _patiently(call: Callable[[], T]) -> T:
    """Call, and call again while the hub has no time; each wait is random beyond what the hub asks for."""
    deadline = time.monotonic() + BUSY_SECONDS
    wait, unanswered = 1.0, 0
    while True:
        try:
            return call()
        except Exception as error:
            unanswered += 1 if is_unreachable(error) else 0
            asked_for = seconds_asked_for(error)
            pause = random.uniform(0, wait) if asked_for is None else asked_for + random.uniform(0, 1 + asked_for / 2)  # noqa: S311 - spreads load
            if (
                not (is_busy(error) or is_unreachable(error))
                or unanswered >= UNREACHABLE_ATTEMPTS
                or time.monotonic() + pause > deadline
            ):
                raise
            said = "has no time just now" if is_busy(error) else "does not answer"
            logger.info("the Hugging Face hub %s; it is asked again in %.0f s", said, pause)
            time.sleep(pause)
            wait = min(LONGEST_WAIT_SECONDS, 2 * wait)


def _without_bars() -> None:
    """No progress bars in the log, unless the user has decided."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()


class _RepositoryCache:
    """One repository in the hub's cache folder, and our notes beside it: which commit is there whole.

    A snapshot's folder alone does not tell whether it is whole, nor which files of the commit were wanted.
    """

    def __init__(self, cache: Path, wanted: HubRepository) -> None:
        self._wanted = wanted
        self._cache = cache
        self._name = "models--" + wanted.name.replace("/", "--")
        self._folder = cache / self._name

    @contextlib.contextmanager
    def locked(self, what: str = "fetch") -> Iterator[None]:
        """One worker at a time. In a cache that can't be written to, nothing is fetched and no lock is needed.

        Args:
            what: Workers that do something else don't wait: a fetch may take hours.
        """
        name = "llmengine.lock" if what == "fetch" else f"llmengine-{what}.lock"
        lock = self._cache / ".locks" / self._name / name
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(PermissionError, OSError):
                stack.enter_context(one_at_a_time(lock, f"the {what} of {self._wanted.name}"))
            yield

    def find(self, since: float) -> Snapshot | None:
        """The wanted revision, if a worker has fetched it whole, and it can't mean another commit by now."""
        note = self._read_note(self._wanted.revision or DEFAULT_REVISION)
        if note is None or not (self._wanted.is_fixed or note["asked"] >= since - FRESH_SECONDS):
            return None
        directory = self._folder / "snapshots" / note["commit"]
        if not all((directory / name).is_file() for name in note["files"]):
            return None
        return Snapshot(directory, note["commit"])

    def find_commit(self, since: float) -> str | None:
        """The commit of the wanted revision, if a worker has asked for it, and it can't mean another by now."""
        whole = self.find(since)
        if whole is not None:
            return whole.commit
        try:
            note = json.loads(self._commit_note_path().read_bytes())
            commit, asked = note["commit"], note["asked"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        fresh = isinstance(commit, str) and isinstance(asked, float) and asked >= since - FRESH_SECONDS
        return commit if fresh else None

    def note_commit(self, commit: str, asked: float) -> None:
        """Put down which commit the wanted revision is; nothing of it need be here."""
        _write_note(self._commit_note_path(), {"commit": commit, "asked": asked})

    def any(self) -> Snapshot | None:
        """What the cache has of the wanted revision, whoever put it there."""
        from huggingface_hub import try_to_load_from_cache

        whole = self.find(since=0)
        if whole is not None:
            return whole
        for name in CONFIG_FILES if self._wanted.weights else _TOKENIZER_FILES:
            path = try_to_load_from_cache(
                self._wanted.name, name, revision=self._wanted.revision, cache_dir=self._cache
            )
            if isinstance(path, str):
                return Snapshot(Path(path).parent, Path(path).parent.name)
        return None

    def require_any(self, named: str) -> Snapshot:
        """The same; ``ModelNotFoundError`` if there is nothing."""
        found = self.any()
        if found is None:
            from huggingface_hub.errors import OfflineModeIsEnabled

            raise explain(OfflineModeIsEnabled(), named=named, revision=self._wanted.revision)
        return found

    def note(self, commit: str, names: list[str], asked: float) -> None:
        """Put down that a commit is there whole."""
        for revision in {self._wanted.revision or DEFAULT_REVISION, commit}:
            _write_note(self._note_path(revision), {"commit": commit, "files": names, "asked": asked})

    def bytes_stored(self) -> int:
        """Bytes of all its files, unfinished ones included."""
        total = 0
        for path in self._blobs():
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def delete_leftovers(self) -> None:
        """Delete unfinished files of processes that were killed: the hub's client begins such a file anew."""
        for path in self._blobs():
            if path.name.endswith(".incomplete"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                        path.unlink()

    def _blobs(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return list((self._folder / "blobs").iterdir())
        return []

    def _read_note(self, revision: str) -> dict[str, Any] | None:
        try:
            note = json.loads(self._note_path(revision).read_bytes())
            whole = isinstance(note["commit"], str) and isinstance(note["asked"], float) and bool(note["files"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return note if whole else None

    def _commit_note_path(self) -> Path:
        revision = self._wanted.revision or DEFAULT_REVISION
        return self._folder / "llmengine" / f"commit-{hashlib.sha256(revision.encode()).hexdigest()[:32]}.json"

    def _note_path(self, revision: str) -> Path:
        key = f"{revision}\0{self._wanted.weights}\0{self._wanted.load_format or ''}"
        return self._folder / "llmengine" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _write_note(path: Path, note: dict[str, Any]) -> None:
    # Where it can't be, the next worker asks the hub.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.urandom(8).hex()}")
        new.write_text(json.dumps(note))
        new.replace(path)
