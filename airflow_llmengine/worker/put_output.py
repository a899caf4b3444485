"""Putting a job's output in its place: the elements of its records, or the rows of its table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from airflow_llmengine.spec.manifest import OutputFile
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.job_directory import JobDirectory, JobScratch
from airflow_llmengine.storage.output import OutputWriter
from airflow_llmengine.storage.output_folder import OutputFolder, folder_digest
from airflow_llmengine.worker.chunks import ChunkHeader
from airflow_llmengine.worker.custom_ids import CustomIds
from airflow_llmengine.worker.tables.results import RowResult

if TYPE_CHECKING:
    from airflow_llmengine.worker.tables.table_output import TableOutput


class PutOutput(NamedTuple):
    """What the manifest says of the output itself."""

    bytes: int
    sha256: str
    etag: str | None
    files: list[OutputFile] | None = None


def put_records(
    directory: JobDirectory,
    chunks: Iterable[tuple[ChunkHeader, list[bytes]]],
    custom_ids: CustomIds,
    *,
    before: Callable[[], None],
) -> PutOutput:
    """Put the elements of all records: as JSON lines, or as one array.

    Args:
        directory: The place.
        chunks: The elements, in order.
        custom_ids: Gets to know all of them.
        before: Called before anything in the place is touched; what it raises leaves the old output as it is.
    """
    as_lines = lines_or_array(directory) == "jsonl"
    with OutputWriter(directory.output) as writer:
        for piece in _pieces(chunks, custom_ids, as_lines=as_lines):
            writer.write(piece)
        # Leaving the block puts the output in its place; until then the old one and its manifest stand.
        before()
        directory.delete_manifest()
    return PutOutput(*writer.close())


def put_table(
    directory: JobDirectory,
    scratch: JobScratch,
    results: Iterable[Sequence[RowResult]],
    table: TableOutput,
    *,
    before: Callable[[], None],
) -> PutOutput:
    """Put the rows of all records: as one file, or as the files of a folder.

    Args:
        directory: The place.
        scratch: Where the files of a folder are written first.
        results: Those of all rows, in order.
        table: Writes them.
        before: Called before anything in the place is touched, and before each file of a folder.
    """
    if not table.is_folder:
        with OutputWriter(directory.output) as writer:
            table.write_file(writer, results)
            before()
            directory.delete_manifest()
        return PutOutput(*writer.close())
    folder = OutputFolder(directory.output, scratch.output)
    try:
        table.write_folder(folder, results)
        before()
        directory.delete_manifest()
        files = folder.put(before)
    finally:
        with contextlib.suppress(StorageError):
            folder.discard()
    # Before the scratch goes: what attempts that were killed had begun to write aside would stay behind.
    with contextlib.suppress(StorageError):
        scratch.output.abort_writes()
    return PutOutput(sum(file.bytes for file in files), folder_digest(files), None, files)


def lines_or_array(directory: JobDirectory) -> Literal["json", "jsonl"]:
    """How the elements of records are written: as the ending of the output's name says."""
    return "jsonl" if directory.output.name.endswith(".jsonl") else "json"


def _pieces(
    chunks: Iterable[tuple[ChunkHeader, list[bytes]]], custom_ids: CustomIds, *, as_lines: bool
) -> Iterator[bytes]:
    """The output in pieces of a chunk: JSON lines, or one JSON array with an element a line."""
    separator, before, end, empty = (b"\n", b"", b"\n", b"") if as_lines else (b",\n", b"[\n", b"\n]\n", b"[]\n")
    written = False
    for header, elements in chunks:
        custom_ids.add(header.first, elements)
        yield (separator if written else before) + separator.join(elements)
        written = True
    yield end if written else empty
