"""The input of a job as one sequence of records, whatever it is made of."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from airflow_llmengine.spec.check_tool import STOPS_INSIDE_BLOCKS, stops_inside_blocks
from airflow_llmengine.spec.identity import inline_identity
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request, CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.table import Table
from airflow_llmengine.storage.errors import StorageChangedError, StorageNotFoundError
from airflow_llmengine.storage.filesystem import FileEntry, Storage
from airflow_llmengine.storage.inputs import input_identity, list_input, names_below
from airflow_llmengine.worker.readers.content_file import read_parameters, read_prompts
from airflow_llmengine.worker.readers.decompression import PlainFile
from airflow_llmengine.worker.readers.detection import InputFormat, detect_format
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError
from airflow_llmengine.worker.readers.json_array import read_json_array, read_json_object
from airflow_llmengine.worker.readers.json_lines import read_json_lines
from airflow_llmengine.worker.readers.limits import HEAD_BYTES
from airflow_llmengine.worker.readers.raw_records import refused_record
from airflow_llmengine.worker.readers.unchanged import UnchangedFile, require_unchanged
from airflow_llmengine.worker.readers.values import ValueRefusedError, refuse_lone_surrogates
from airflow_llmengine.worker.records import RawRecord

_READERS: dict[InputFormat, Callable[[Callable[[int], bytes], str, int], Iterator[RawRecord]]] = {
    InputFormat.V1_CONTENT: read_prompts,
    InputFormat.JSON_ARRAY: read_json_array,
    InputFormat.JSON_DOCUMENT: read_json_object,
    InputFormat.JSON_LINES: read_json_lines,
}


class InputReader(ABC):
    """A job's input.

    Reading is streaming: memory does not grow with the input, whose one record may take 64 MiB.
    """

    format: InputFormat
    """What the input is; of several files, what the first one is."""
    identity: str
    """Names the input's content, as it was when it was opened."""
    content: CreateBatchCompletionsV1RequestContent | None
    """The parameters that all V1 records share, with ``prompts`` empty; None for other records."""

    @abstractmethod
    def records(self) -> Iterator[RawRecord]:
        """All records in order, from the beginning each time it is called.

        Raises:
            InputInvalidError: The input can't be read any further. The records before it stay valid.
            StorageError: A file can't be read.
        """

    @abstractmethod
    def check_unchanged(self) -> None:
        """Make sure that the input is still what it was when it was opened.

        Raises:
            InputChangedError: It is not.
            StorageError: It can't be told.
        """


def open_input(storage: Storage, request: CreateBatchCompletionsV1Request, table: Table | None = None) -> InputReader:
    """Open a job's input: its ``content``, or the files of its ``input_data_path``.

    Args:
        storage: Where they are.
        request: The job.
        table: How rows become records, if the files are a table.

    Raises:
        InputInvalidError: It can be seen at once that the input can't be read.
        StorageError: A file does not exist or can't be read.
    """
    if table is not None:
        return _open_table(storage, request, table)
    if request.content is not None:
        return InlineInput(request.content)
    if request.input_data_path is None:
        raise InputInvalidError("The request has neither content nor input_data_path: give exactly one of them.")
    reader = FileInput(storage, request.input_data_path)
    if request.tool_config is not None:
        _refuse_without_blocks(reader.content)
    return reader


def _open_table(storage: Storage, request: CreateBatchCompletionsV1Request, table: Table) -> InputReader:
    for package in ("jinja2", "numpy", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise InputInvalidError(
                f"A table needs the package {package}, which is not installed where the worker runs: install "
                "airflow-llmengine[parquet] there."
            )
    from airflow_llmengine.worker.tables.table_input import TableInput

    return TableInput(storage, request, table)


def _refuse_without_blocks(content: CreateBatchCompletionsV1RequestContent | None) -> None:
    """Refuse an input for which ``tool_config`` would have no effect."""
    if content is None:
        raise InputInvalidError(
            "The input is not a V1 content object, and tool_config is for V1 alone: leave tool_config out, or write "
            "the input as one object with prompts, max_new_tokens and temperature."
        )
    for index in stops_inside_blocks(content):
        raise InputInvalidError(f"The input's stop_sequences[{index}] {STOPS_INSIDE_BLOCKS}: leave it out.")


class InlineInput(InputReader):
    """The prompts that the request brings itself."""

    def __init__(self, content: CreateBatchCompletionsV1RequestContent) -> None:
        self.format = InputFormat.V1_CONTENT
        self.identity = inline_identity(content)
        self.content = content.model_copy(update={"prompts": []})
        self._prompts: Sequence[str] = content.prompts

    def records(self) -> Iterator[RawRecord]:
        """See ``InputReader``."""
        for index, prompt in enumerate(self._prompts):
            location, size = f"content.prompts[{index}]", len(prompt.encode("utf-8", "surrogatepass"))
            try:
                refuse_lone_surrogates(prompt)
            except ValueRefusedError as refused:
                yield refused_record(index, location, size, refused)
            else:
                yield RawRecord(index=index, location=location, value=prompt, size=size)

    def check_unchanged(self) -> None:
        """Nothing can replace it: the request is in memory."""


class FileInput(InputReader):
    """The records of one file, or of several in the order of their names.

    Several files are one sequence of records, and each may be of another format and compression; only the first is
    looked at when the input is opened. A V1 content object, whose parameters hold for the whole job, must be the only
    file.
    """

    def __init__(self, storage: Storage, url: str) -> None:
        self._storage = storage
        self._url = url
        self._files = list_input(storage, url)
        self.identity = input_identity(storage, self._files)
        self._names = names_below(storage.location(url), self._files)
        self.format, self.content = self._look_at_first()

    def records(self) -> Iterator[RawRecord]:
        """See ``InputReader``."""
        index = 0
        for entry, name in zip(self._files, self._names, strict=True):
            try:
                with self._open(entry, name) as file:
                    found = self.format if entry is self._files[0] else self._detect(file, name)
                    for record in _READERS[found](file.read, name, index):
                        yield record
                        index = record.index + 1
            except (StorageNotFoundError, StorageChangedError) as error:
                raise InputChangedError(f"The input was changed while the job read it: {error}") from error

    def check_unchanged(self) -> None:
        """See ``InputReader``."""
        require_unchanged(self._storage, self._url, self.identity)

    def _look_at_first(self) -> tuple[InputFormat, CreateBatchCompletionsV1RequestContent | None]:
        name = self._names[0]
        with self._open(self._files[0], name) as file:
            found = self._detect(file, name)
            if found not in (InputFormat.V1_CONTENT, InputFormat.JSON_DOCUMENT):
                return found, None
            content = read_parameters(file.read, name)
        if content is None:
            return InputFormat.JSON_DOCUMENT, None
        return InputFormat.V1_CONTENT, content

    def _detect(self, file: PlainFile, name: str) -> InputFormat:
        found = detect_format(file.peek(HEAD_BYTES), name)
        if found is InputFormat.V1_CONTENT and len(self._files) > 1:
            raise InputInvalidError(
                f"{name} is a V1 content object, and input_data_path stands for {len(self._files)} files: "
                "a job takes one such file alone, since its parameters hold for all prompts of the job."
            )
        return found

    def _open(self, entry: FileEntry, name: str) -> PlainFile:
        return PlainFile(UnchangedFile(self._storage.location(entry.url), entry), name)
