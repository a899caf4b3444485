"""Where a job's records come from and where its results go, as far as the request alone can tell."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterator

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import Table
from airflow_llmengine.spec.validation import Refusal

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.ASCII | re.DOTALL)
_CHAIN = re.compile(
    r"(?!(?:s3|s3a|s3n|memory|file|local)://)[A-Za-z][A-Za-z0-9+.-]*://.*::", re.ASCII | re.DOTALL | re.IGNORECASE
)
"""fsspec takes two colons for the beginning of another store; these stores are not opened by its URLs."""
_ONE_SLASH = re.compile(r"(s3|s3a|gs|gcs|az|abfs|abfss|file|memory):(?!//)", re.ASCII | re.IGNORECASE)
_OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss"})
_READ_ONLY = frozenset({"http", "https", "ftp", "data"})
_SAME_SCHEMES = {"file": "", "local": "", "s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


def path_refusals(request: CreateBatchCompletionsV1Request, table: Table | None = None) -> Iterator[Refusal]:
    """Refuse what has not exactly one input, or an output that can't be one. A table may be a folder, with a slash."""
    source, target = request.input_data_path, request.output_data_path
    if request.content is not None and source is not None:
        yield Refusal("content", "content and input_data_path are both given", "give exactly one of the two")
    elif request.content is None and source is None:
        remedy = "give exactly one of the two" if table is None else "give input_data_path, the table's files"
        yield Refusal("input_data_path", "neither input_data_path nor content is given", remedy)
    faults = [
        *([] if source is None else url_refusals("input_data_path", source)),
        *(url_refusals("output_data_path", target) or _output_refusals(target, may_be_folder=table is not None)),
    ]
    yield from faults
    if source is not None and not faults:
        yield from _overlap_refusals(source, target)


def url_refusals(field: str, url: str) -> list[Refusal]:
    """What is wrong with a URL or a local path, whatever it is for."""
    if not url.strip():
        return [Refusal(field, "is empty", "give a path or a URL")]
    if url != url.strip() or not url.isprintable():
        return [Refusal(field, "has white space around it, or control characters in it", "leave them out")]
    if re.match(r"[A-Za-z0-9+.-]+::", url) or _CHAIN.match(url):
        return [Refusal(field, "is a chain of URLs, which is not supported", "give the URL of the data itself")]
    one_slash = _ONE_SLASH.match(url)
    if one_slash:
        return [Refusal(field, f"has no // after {one_slash[0]}", f"write {one_slash[0]}//")]
    match = _URL.fullmatch(url)
    if match is None:
        wrong = "://" in url and "/" not in url.partition("://")[0]
        return [Refusal(field, "has no valid scheme before ://", "write for example s3://bucket/key")] if wrong else []
    scheme, host = match[1].lower(), match[2].partition("/")[0]
    if scheme in _OBJECT_STORES and not host:
        return [Refusal(field, "names no bucket", f"write {scheme}://bucket/key")]
    if ":" in host.rpartition("@")[0] or ("@" in host and scheme in _READ_ONLY):
        return [Refusal(field, "holds credentials", "put them into the connection")]
    return []


def checkpoint_refusals(field: str, url: str) -> Iterator[Refusal]:
    """Refuse what can't be the folder of a checkpoint. A directory where the worker runs is a path without a scheme."""
    yield from (faults := url_refusals(field, url))
    match = _URL.fullmatch(url)
    if faults or match is None:
        return
    scheme, parts = match[1].lower(), match[2].split("/")
    if scheme in _READ_ONLY:
        reason = f"a checkpoint can't be fetched from {scheme}://, which has no folders to list"
        yield Refusal(field, reason, "put it on an object store, or into a directory where the worker runs")
    elif scheme in _OBJECT_STORES and not {".", ".."}.isdisjoint(parts):
        yield Refusal(field, "has a part . or .. in it, which an object store takes as a name", "leave it out")


def _output_refusals(url: str, *, may_be_folder: bool) -> Iterator[Refusal]:
    if may_be_folder:
        url = url.rstrip("/") or url
    match = _URL.fullmatch(url)
    scheme, rest = (match[1].lower(), match[2]) if match else ("", url)
    if scheme in _READ_ONLY:
        yield Refusal("output_data_path", f"results can't be written to {scheme}://", "give a path or an object store")
    elif scheme in _OBJECT_STORES and not rest.partition("/")[2].strip("/"):
        yield Refusal("output_data_path", "names a bucket and no object in it", f"write {scheme}://bucket/key")
    elif scheme in _OBJECT_STORES and not {".", ".."}.isdisjoint(rest.split("/")):
        yield Refusal(
            "output_data_path", "has a part . or .. in it, which an object store takes as a name", "leave it out"
        )
    elif posixpath.basename(rest) in ("", ".", ".."):
        yield Refusal("output_data_path", "names a folder", "add the name of a file, for example results.jsonl")


def _overlap_refusals(source: str, target: str) -> Iterator[Refusal]:
    """Results among the input's own files would be read as input by the next attempt."""
    if _parts(source) == _parts(target):
        yield Refusal("output_data_path", "is the same as input_data_path", "write the results elsewhere")
    elif lies_among(source, target):
        reason = "lies among the files of input_data_path, where the next attempt would read it as input"
        yield Refusal("output_data_path", reason, "write the results elsewhere")


def is_within(place: str, target: str) -> bool:
    """Whether a place is that of a job's results, of what stands beside them, or lies below one of these."""
    target_parts, parts = _parts(target), _parts(place)
    last = len(target_parts) - 1
    taken = {target_parts[last] + suffix for suffix in ("", ".job", ".manifest.json")}
    return parts[:last] == target_parts[:last] and len(parts) > last and parts[last] in taken


def lies_among(source: str, target: str) -> bool:
    """Whether a file, that is not the input itself, is among the input's files.

    What a folder or a glob stands for is ``storage.inputs``' business; this catches what the paths alone tell.
    """
    source_parts, target_parts = _parts(source), _parts(target)
    folder = source_parts if not any(map(_is_pattern, source_parts)) else source_parts[:-1]
    if any(map(_is_pattern, folder)) or target_parts[: len(folder)] != folder:
        return False
    below = target_parts[len(folder) :]
    if not below or any(part.startswith((".", "_")) for part in below):
        return False
    return folder == source_parts or fnmatch.fnmatchcase(below[0], source_parts[-1]) or source_parts[-1] == "**"


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")


def _parts(url: str) -> list[str]:
    """Scheme and path, with what means the same written the same."""
    match = _URL.fullmatch(url)
    scheme, path = (match[1].lower(), match[2]) if match else ("", url)
    scheme = _SAME_SCHEMES.get(scheme, scheme)
    return [scheme, *(path.rstrip("/") if scheme else posixpath.normpath(path)).split("/")]
