"""The files beside an output that hold a job's state. The layout is a contract: other tools read it.

::

    <output_data_path>.manifest.json           the proof that the output is whole
    <output_data_path>.job/
        current.json                           which fingerprint and generation may commit
        cancel.json                            present: stop and save
        handed_over.json                       a pod that a sensor is to see to
        <fingerprint>-<generation>/            a JobScratch: chunks, parts, heartbeats; removed after success
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from airflow_llmengine.spec.job_state import (
    CancelRequest,
    Claim,
    CurrentJob,
    HandedOverPod,
    Heartbeat,
    InputEnd,
    JobDocument,
    JobHandle,
    PinnedInput,
    PinnedModel,
    StateDocument,
)
from airflow_llmengine.spec.manifest import Manifest, OutputFile
from airflow_llmengine.storage.errors import (
    StorageDocumentError,
    StorageNoBucketError,
    StorageNotFoundError,
    StorageUnsupportedError,
)
from airflow_llmengine.storage.filesystem import FileEntry, Location, Storage, content_identity
from airflow_llmengine.storage.inputs import data_files
from airflow_llmengine.storage.layout import JOB_SUFFIX, MANIFEST_SUFFIX

log = logging.getLogger(__name__)

CHUNKS_PER_FOLDER = 1000
"""So that no folder grows beyond what file systems list quickly."""

MAX_DOCUMENT_BYTES = 16 * 2**20
"""Most bytes of a state document. The triggerer reads them for all sensors, and others may be able to write them."""

D = TypeVar("D", bound=StateDocument)

_SCRATCH_NAME = re.compile(r"([A-Za-z0-9_.-]{1,100})-([1-9][0-9]{0,8})")
_CHUNK_NAME = re.compile(r"([0-9]{3,})/([0-9]{8,})(?:\.(part|round|transient)-(0|[1-9][0-9]*))?\.jsonl")
_CLAIM_NAME = re.compile(r"([0-9]{3,})/([0-9]{8,})(?:\.([1-9][0-9]*))?")


@dataclass(frozen=True, slots=True)
class ChunkFiles:
    """What a listing shows of a generation's chunks. A store may show a new file late."""

    rounds: dict[int, int] = field(default_factory=dict)
    """By committed chunk, its newest round: 0 when it was made once, as nearly all are."""
    parts: set[int] = field(default_factory=set)
    """Chunks of which there are parts, committed ones included."""
    transient: set[int] = field(default_factory=set)
    """Committed chunks whose newest round has records with errors that trying again may mend."""


class JobDirectory:
    """Everything that is kept beside one output: a file, or a folder of files, which has the same name without a slash.

    Args:
        storage: Where the output is.
        output_data_path: Its URL; a slash at the end says that a new output is to be a folder.
    """

    def __init__(self, storage: Storage, output_data_path: str) -> None:
        self.storage = storage
        self.is_folder = output_data_path.endswith("/")
        """Whether what is to be put here is a folder. What stands here is what its manifest says."""
        self.output: Location = storage.location(output_data_path)
        self.manifest: Location = self.output.sibling(MANIFEST_SUFFIX)
        self.root: Location = self.output.sibling(JOB_SUFFIX)
        if not self.output.names_file:
            raise StorageUnsupportedError(f"The output {self.output} names no file; give the name of a file in it.")
        self._current = self.root.child("current.json")
        self._cancel = self.root.child("cancel.json")
        self._handed_over = self.root.child("handed_over.json")

    def __repr__(self) -> str:
        return f"JobDirectory({str(self.output)!r})"

    def read_current(self) -> CurrentJob | None:
        """Which generation may commit; None before the first launch."""
        return read_document(self._current, CurrentJob)

    def write_current(self, current: CurrentJob) -> None:
        """Say which generation may commit from now on."""
        write_document(self._current, current)

    def read_manifest(self) -> Manifest | None:
        """The manifest as it stands, whatever became of the output; None if there is none.

        Its output is the one that it stands beside, also where both were copied or moved here. A folder has no slash at
        the end there.
        """
        manifest = read_document(self.manifest, Manifest)
        return None if manifest is None else manifest.model_copy(update={"output_data_path": self.output.url})

    def write_manifest(self, manifest: Manifest) -> None:
        """Put the manifest; the output must stand."""
        write_document(self.manifest, manifest)

    def delete_manifest(self) -> None:
        """Take back the proof, before the output is replaced."""
        self.manifest.delete()

    def valid_manifest(self) -> Manifest | None:
        """The manifest if the output beside it is the one it tells of, else None; the debug log says why.

        Compared are the size, and the store's etag where there is one. Where it is another, which it may be of the same
        content put twice or copied, or there is none, it is the SHA-256, for which the output is read.
        """
        try:
            manifest = self.read_manifest()
        except StorageDocumentError as error:
            log.debug("No valid manifest: %s", error)
            return None
        if manifest is None:
            log.debug("No valid manifest: %s does not exist.", self.manifest)
            return None
        reason = self._mismatch(manifest)
        if reason is not None:
            log.debug("No valid manifest: %s %s.", self.output, reason)
            return None
        return manifest

    def output_exists(self) -> bool:
        """Whether something stands where the output is to be: the file, or a file in the folder."""
        return bool(data_files(self.output)) if self.is_folder else self.output.exists()

    def _mismatch(self, manifest: Manifest) -> str | None:
        if manifest.files is not None:
            return self._folder_mismatch(manifest.files)
        entry = self.output.info()
        if entry is None:
            return "does not exist"
        return _file_mismatch(self.output, entry, manifest.output_bytes, manifest.output_sha256, manifest.output_etag)

    def _folder_mismatch(self, files: Sequence[OutputFile]) -> str | None:
        standing = {entry.url: entry for entry in data_files(self.output)}
        for file in files:
            place = self.output.child(file.name)
            entry = standing.pop(place.url, None)
            fault = (
                "does not exist" if entry is None else _file_mismatch(place, entry, file.bytes, file.sha256, file.etag)
            )
            if fault is not None:
                return f"has a file {file.name}, which {fault}"
        # Whoever reads the folder reads them, too.
        return f"has {len(standing)} files more than the manifest says" if standing else None

    def read_cancel(self) -> CancelRequest | None:
        """The request to stop, if somebody made one."""
        return read_document(self._cancel, CancelRequest)

    def write_cancel(self, request: CancelRequest) -> None:
        """Ask every worker of a generation to stop and save."""
        write_document(self._cancel, request)

    def clear_cancel(self) -> None:
        """Take the request to stop back."""
        self._cancel.delete()

    def read_handed_over(self) -> HandedOverPod | None:
        """The pod that was handed over last; None if none ever was. It stays when the job has finished."""
        return read_document(self._handed_over, HandedOverPod)

    def write_handed_over(self, pod: HandedOverPod) -> None:
        """Hand a pod over to whoever waits for the job."""
        write_document(self._handed_over, pod)

    def scratches(self) -> list[JobHandle]:
        """The generations of which something is left, by name."""
        found = []
        for name in self.root.folders():
            match = _SCRATCH_NAME.fullmatch(name)
            if match is not None:
                found.append(
                    JobHandle(path=self.output.url, fingerprint=match.group(1), generation=int(match.group(2)))
                )
        return found

    def scratch(self, handle: JobHandle) -> JobScratch:
        """The scratch of one generation, whether there is one yet or not."""
        return JobScratch(self.root.child(handle.scratch_name), handle)


class JobScratch:
    """What one generation of a job has done so far.

    ``input.json``, ``model.json``, ``end.json``, chunks and parts are created only if absent: the first writer wins.
    They are never replaced, but for a part, by the attempt that created it. The rest is replaced by whoever it belongs
    to.
    """

    def __init__(self, root: Location, handle: JobHandle) -> None:
        self.root = root
        self.handle = handle
        self._job = root.child("job.json")
        self._input = root.child("input.json")
        self._model = root.child("model.json")
        self._end = root.child("end.json")
        self._chunks = root.child("chunks")
        self._claims = root.child("claims")
        self.output = root.child("output")
        """Where the files of an output that is a folder are written before all of them are put in their places."""
        self._replicas = root.child("replicas")

    def __repr__(self) -> str:
        return f"JobScratch({str(self.root)!r})"

    def read_job(self) -> JobDocument | None:
        """The launch; None before it."""
        return read_document(self._job, JobDocument)

    def write_job(self, job: JobDocument) -> None:
        """Put down the launch."""
        write_document(self._job, job)

    def read_input(self) -> PinnedInput | None:
        """What the first worker found; None before it."""
        return read_document(self._input, PinnedInput)

    def pin_input(self, pinned: PinnedInput) -> PinnedInput:
        """Put down what was found unless somebody did before; gives what stands, for the caller to compare."""
        return _create_document(self._input, pinned)

    def read_model(self) -> PinnedModel | None:
        """The weights that were loaded; None until a worker has loaded them."""
        return read_document(self._model, PinnedModel)

    def pin_model(self, pinned: PinnedModel) -> PinnedModel:
        """Put down what was loaded unless somebody did before; gives what stands, for the caller to compare."""
        return _create_document(self._model, pinned)

    def read_end(self) -> InputEnd | None:
        """How long the input is; None until somebody has read it to its end."""
        return read_document(self._end, InputEnd)

    def write_end(self, end: InputEnd) -> InputEnd:
        """Put down how long the input is unless somebody did before; gives what stands."""
        return _create_document(self._end, end)

    def commit_chunk(self, chunk: int, data: bytes, *, round_number: int = 0, transient: bool = False) -> bool:
        """Commit a finished chunk: its elements in input order, as lines. False if it was committed already.

        Args:
            chunk: Its number.
            data: Its file.
            round_number: 0, or the number of the time that it was made again for its transient errors.
            transient: Whether it has such errors. A mark says so, for who only lists.
        """
        if transient:
            # Before the chunk: a mark without its chunk means nothing, and a chunk without its mark would be final.
            self._chunk_file(chunk, "transient", round_number).create(b"")
        return self._chunk(chunk, round_number).create(data)

    def has_chunk(self, chunk: int) -> bool:
        """Whether a chunk is committed; asked directly, so that a late listing does not matter."""
        return self._chunk(chunk).exists()

    def committed_chunks(self) -> set[int]:
        """The chunks that are committed, as listed."""
        return set(self.chunk_files().rounds)

    def chunk_files(self) -> ChunkFiles:
        """One listing of all that is there of chunks."""
        found = ChunkFiles()
        marks: set[tuple[int, int]] = set()
        for chunk, kind, number in self._chunk_names():
            if kind == "part":
                found.parts.add(chunk)
            elif kind == "transient":
                marks.add((chunk, number))
            else:
                found.rounds[chunk] = max(number, found.rounds.get(chunk, 0))
        found.transient.update(chunk for chunk, number in marks if found.rounds.get(chunk) == number)
        return found

    def read_chunk(self, chunk: int, round_number: int = 0) -> bytes:
        """A committed chunk, whole. ``StorageNotFoundError`` if it is not committed."""
        return self._chunk(chunk, round_number).read_bytes()

    def open_chunk(self, chunk: int) -> BinaryIO:
        """A committed chunk, to be read piece by piece. ``StorageNotFoundError`` if it is not committed."""
        return self._chunk(chunk).open_read()

    def chunk_url(self, chunk: int, round_number: int = 0) -> str:
        """Where a chunk's file is, for messages."""
        return str(self._chunk(chunk, round_number))

    def commit_part(self, chunk: int, data: bytes, *, known: int = 0) -> int:
        """Commit the finished records of an interrupted chunk; gives the part's number, the first that was free.

        Args:
            chunk: The chunk's number.
            data: The part's file.
            known: How many parts of it are known to stand. Nothing is listed: a long job has many parts.
        """
        part = known
        while not self._chunk_file(chunk, "part", part).create(data):
            part += 1
        return part

    def replace_part(self, chunk: int, part: int, data: bytes) -> None:
        """Write a part anew that this attempt committed, with all that it holds and more."""
        self._chunk_file(chunk, "part", part).replace(data)

    def read_parts(self, chunk: int) -> list[bytes]:
        """The parts of a chunk, in the order of their numbers; each is asked for, so that a late listing hides none."""
        parts: list[bytes] = []
        while True:
            try:
                parts.append(self._chunk_file(chunk, "part", len(parts)).read_bytes())
            except StorageNotFoundError:
                return parts

    def claims(self) -> dict[int, int]:
        """By chunk, the number of its newest claim, as listed."""
        newest: dict[int, int] = {}
        for name in self._claims.walk_names():
            match = _CLAIM_NAME.fullmatch(name)
            if match is not None:
                chunk = int(match.group(2))
                newest[chunk] = max(int(match.group(3) or 0), newest.get(chunk, 0))
        return newest

    def create_claim(self, chunk: int, number: int, claim: Claim) -> bool:
        """Take a chunk; False if somebody has this claim already."""
        # A power cut ends the claimant, too.
        return self._claim(chunk, number).create(_serialize(claim), durable=False)

    def read_claim(self, chunk: int, number: int) -> Claim | None:
        """A claim; None if there is none."""
        return read_document(self._claim(chunk, number), Claim)

    def replace_claim(self, chunk: int, number: int, claim: Claim) -> None:
        """Note something in one's own claim."""
        write_document(self._claim(chunk, number), claim)

    def claim_round(self, chunk: int, round_number: int, claim: Claim) -> bool:
        """Take it upon oneself to make a chunk again; False if somebody has done so for this round already."""
        return self._claims.child(f"{_chunk_path(chunk)}.round-{round_number}").create(_serialize(claim))

    def write_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Replace the replica's sign of life."""
        write_document(self._replicas.child(f"{heartbeat.replica}.json"), heartbeat)

    def read_heartbeat(self, replica: int) -> Heartbeat | None:
        """The last sign of life of one replica; None before it."""
        return read_document(self._replicas.child(f"{replica}.json"), Heartbeat)

    def read_heartbeats(self) -> list[Heartbeat]:
        """The last sign of life of each replica, by number."""
        found = [
            read_document(self._replicas.child(entry.name), Heartbeat)
            for entry in self._replicas.list()
            if re.fullmatch(r"[0-9]+\.json", entry.name)
        ]
        return sorted((heartbeat for heartbeat in found if heartbeat is not None), key=lambda beat: beat.replica)

    def delete(self) -> None:
        """Delete everything; nothing happens if there is nothing.

        Chunks go first and the documents last: what a deletion that was cut short leaves must never be chunks without
        the ``input.json`` that says how they were cut.
        """
        self._chunks.delete_tree()
        self.root.delete_tree()

    def _chunk(self, chunk: int, round_number: int = 0) -> Location:
        return (
            self._chunk_file(chunk, "round", round_number) if round_number else self._chunks.child(_chunk_name(chunk))
        )

    def _chunk_file(self, chunk: int, kind: str, number: int) -> Location:
        return self._chunks.child(f"{_chunk_path(chunk)}.{kind}-{number}.jsonl")

    def _claim(self, chunk: int, number: int) -> Location:
        return self._claims.child(_chunk_path(chunk) + (f".{number}" if number else ""))

    def _chunk_names(self) -> list[tuple[int, str, int]]:
        parsed = (_parse_chunk_name(name) for name in self._chunks.walk_names())
        return [found for found in parsed if found is not None]


def _file_mismatch(place: Location, entry: FileEntry, size: int, sha256: str, etag: str | None) -> str | None:
    if entry.size != size:
        return f"has {entry.size} bytes where the manifest says {size}"
    if entry.identity is not None and entry.identity == f"etag:{etag}":
        return None
    try:
        identity = content_identity(place)
    except StorageNotFoundError:
        return "was deleted just now"
    return None if identity == f"sha256:{sha256}" else "has another checksum than the manifest says"


def read_document(location: Location, model: type[D]) -> D | None:
    """The document at ``location``; None if there is none. ``StorageDocumentError`` if it is not what it should be."""
    try:
        data = location.read_start(MAX_DOCUMENT_BYTES + 1)
    except StorageNoBucketError:
        # A name that is misspelt, rather than a job that is still to come.
        raise
    except StorageNotFoundError:
        return None
    fault = f"it has more than {MAX_DOCUMENT_BYTES} bytes"
    if len(data) <= MAX_DOCUMENT_BYTES:
        try:
            return model.model_validate_json(data)
        except ValidationError as error:
            fault = _first_fault(error)
    raise StorageDocumentError(
        f"{location} is damaged, or no file of this program ({fault}); if nothing of the job is running, delete it."
    )


def write_document(location: Location, document: StateDocument) -> None:
    """Replace the document at ``location``."""
    location.replace(_serialize(document))


def _create_document(location: Location, document: D) -> D:
    if location.create(_serialize(document)):
        return document
    standing = read_document(location, type(document))
    if standing is None:
        raise StorageNotFoundError(f"{location} was deleted while the job was running; start the job again.")
    return standing


def _serialize(document: StateDocument) -> bytes:
    return document.model_dump_json(indent=2).encode() + b"\n"


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # The field alone: what lies below it is not ours to quote.
    return f"{fault['loc'][0]}: {fault['msg']}" if fault["loc"] else "not JSON of that form"


def _chunk_path(chunk: int) -> str:
    if chunk < 0:
        raise ValueError(f"{chunk} is not the number of a chunk.")
    return f"{chunk // CHUNKS_PER_FOLDER:03d}/{chunk:08d}"


def _chunk_name(chunk: int) -> str:
    return f"{_chunk_path(chunk)}.jsonl"


def _parse_chunk_name(name: str) -> tuple[int, str, int] | None:
    """Chunk, kind (``round``, ``part``, ``transient``) and number of a file below ``chunks/``; None for any other."""
    match = _CHUNK_NAME.fullmatch(name)
    if match is None:
        return None
    chunk = int(match.group(2))
    if _chunk_path(chunk) != f"{match.group(1)}/{match.group(2)}":
        return None
    return chunk, match.group(3) or "round", int(match.group(4) or 0)
