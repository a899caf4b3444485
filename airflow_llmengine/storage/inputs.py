"""Which files an input URL stands for, and what identifies them."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from airflow_llmengine.storage.errors import StorageNotFoundError
from airflow_llmengine.storage.filesystem import FileEntry, Location, Storage, content_identity
from airflow_llmengine.storage.layout import JOB_SUFFIX, MANIFEST_SUFFIX
from airflow_llmengine.storage.urls import LOCAL, MEMORY, parse_url, redact

_WILDCARD = re.compile(r"[*?\[]")


def list_input(storage: Storage, url: str) -> list[FileEntry]:
    """The files that ``url`` stands for, in the order of their paths.

    - A file stands for itself, whatever it is called.
    - A folder (or an object store's prefix up to a slash) stands for the files below it, at any depth.
    - A glob stands for all that it matches: ``*``, ``?`` and ``[...]`` within a name, ``**`` for any folders. A folder
      that it matches stands for the files below it.

    Where a name is both a file and a folder, it is the file; a slash at the end asks for the folder. Left out, unless
    the URL names them, are hidden files and folders, those that begin with ``_``, and what jobs put beside their
    outputs: ``X.manifest.json`` where there is an ``X``, and folders ``X.job``.

    The order is that of the paths as text (by code point), which is the order in which object stores list.
    ``StorageNotFoundError`` if there is nothing.
    """
    location = storage.location(url)
    parsed = parse_url(url)
    if parsed.protocol not in (LOCAL, MEMORY) and _WILDCARD.search(parsed.store):
        raise StorageNotFoundError(f"The glob {redact(url)} names no bucket; a bucket's name can't be a pattern.")
    wants_folder = url.endswith("/")
    if not wants_folder:
        entry = location.info()
        if entry is not None:
            return [entry]
    entries = data_files(location)
    if not entries and _WILDCARD.search(parsed.path):
        entries = _matching(storage, location.url, wants_folder)
    if not entries:
        hint = "check its spelling"
        if not wants_folder and not _WILDCARD.search(location.url):
            hint += f", or write {redact(location.url)}* for all names that begin so"
        raise StorageNotFoundError(
            f"There is no input at {redact(url)}: no such file, and no folder with data in it; {hint}."
        )
    return sorted({entry.url: entry for entry in entries}.values(), key=lambda entry: entry.url)


def names_below(location: Location, entries: Sequence[FileEntry]) -> list[str]:
    """The files' paths below the input's root, as people and messages call them; without what a URL keeps private.

    The root is the folder that the input is, or the last one above the first wildcard of a glob. A file that is the
    input itself has its name alone.

    Args:
        location: The input.
        entries: What ``list_input`` has found there.
    """
    # Shown forms are cut, and not cut forms shown: of a part of a URL nobody could tell what is private.
    urls = [redact(entry.url) for entry in entries]
    fixed = redact(location.url)
    root = f"{fixed.removesuffix('/')}/"
    if not all(url.startswith(root) for url in urls):
        wildcard = None if urls == [fixed] else _WILDCARD.search(fixed)
        fixed = fixed[: wildcard.start()] if wildcard else fixed
        root = fixed[: fixed.rfind("/") + 1]
    return [url[len(root) :] if url.startswith(root) else url.rpartition("/")[2] for url in urls]


def input_identity(storage: Storage, entries: Iterable[FileEntry]) -> str:
    """One digest of the input as a whole: ``files:sha256:...``.

    It changes with the content of any file, with their number, their order, and their names below the folder that they
    have in common; not when all of them are moved to another place together. Where the store has no tags, the files
    are read.
    """
    entries = list(entries)
    urls = [redact(entry.url) for entry in entries]
    start = len(_common_folder(urls))
    digest = hashlib.sha256()
    for entry, url in zip(entries, urls, strict=True):
        identity = entry.identity or content_identity(storage.location(entry.url))
        digest.update(json.dumps([url[start:], entry.size, identity]).encode())
    return f"files:sha256:{digest.hexdigest()}"


def data_files(folder: Location) -> list[FileEntry]:
    """The files below a folder, at any depth and in no order, without those that are no data (see ``list_input``)."""
    entries = list(folder.walk())
    urls = _with_folders((entry.url for entry in entries), folder.url_below)
    start = len(folder.url_below)
    return [entry for entry in entries if _is_data(entry.url[start:].split("/")) and not _is_manifest(entry.url, urls)]


def _with_folders(urls: Iterable[str], root: str) -> set[str]:
    """The URLs of files, and of the folders below ``root`` in which they are: an output may be either."""
    files, folders = set(urls), set[str]()
    for url in files:
        folder = url.rpartition("/")[0]
        while len(folder) > len(root) and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return files | folders


def _matching(storage: Storage, pattern: str, wants_folder: bool) -> list[FileEntry]:
    """The files that a glob stands for."""
    parsed = parse_url(pattern)
    parts = parsed.path.split("/")
    first = next(index for index, part in enumerate(parts) if _WILDCARD.search(part))
    above = "/".join(parts[:first])
    root = Location(storage, parsed.prefix + above if parsed.prefix else above or "/")
    return list(_expand(root, parts[first:], wants_folder))


def _expand(
    folder: Location, parts: list[str], wants_folder: bool, above: tuple[Path, ...] = ()
) -> Iterator[FileEntry]:
    """What the glob's remaining ``parts`` match below ``folder``; ``above`` are the folders that ``**`` led through."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        if folder.is_local:
            real = Path(folder.url).resolve()
            if real in above:  # a symbolic link that leads back up: a few of them would be gone through for ever
                return
            above = (*above, real)
        yield from _expand(folder, rest or ["*"], wants_folder)
        for name in folder.folders():
            if _is_data([name]):
                yield from _expand(folder.child(name), parts, wants_folder, above)
        return
    if not part:  # two slashes in a row: object stores may have such names, globs leave them alone
        return
    if not _WILDCARD.search(part) and rest:
        yield from _expand(folder.child(part), rest, wants_folder)
        return
    matches = re.compile(fnmatch.translate(part)).match
    asked_for = part.startswith((".", "_")) or part.endswith(JOB_SUFFIX)  # such a pattern asks for such names
    names = folder.folders()
    for name in names:
        if matches(name) and (asked_for or _is_data([name])):
            below = folder.child(name)
            yield from _expand(below, rest, wants_folder) if rest else data_files(below)
    if rest or wants_folder:
        return
    files = folder.list()
    urls = {entry.url for entry in files} | {folder.url_below + name for name in names}
    for entry in files:
        if not matches(entry.name) or not (asked_for or _is_data([entry.name])):
            continue
        if part.endswith(MANIFEST_SUFFIX) or not _is_manifest(entry.url, urls):
            yield entry


def _is_data(parts: list[str]) -> bool:
    """Whether a path below the input's root is data: neither hidden, nor set aside by ``_``, nor a job's state."""
    return not any(part[:1] in (".", "_") for part in parts) and not any(part.endswith(JOB_SUFFIX) for part in parts)


def _is_manifest(url: str, urls: set[str]) -> bool:
    return url.endswith(MANIFEST_SUFFIX) and url.removesuffix(MANIFEST_SUFFIX) in urls


def _common_folder(urls: list[str]) -> str:
    """The longest folder, with its slash, that all lie in."""
    if not urls:
        return ""
    first, last = min(urls), max(urls)
    length = 0
    for index, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            break
        if a == "/":
            length = index + 1
    return first[:length]
