"""S3 and stores with its interface, by s3fs.

Requests are made one by one (``S3FileSystem.call_s3``) and not through the file system's higher calls: those act on
cached listings, look up more than is asked, and try again where a repetition must know of the first attempt.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from airflow_llmengine.storage.backend import (
    Backend,
    PendingWrite,
    RawFile,
    StoredFile,
    is_temporary,
    prove_commits,
)
from airflow_llmengine.storage.errors import (
    StorageChangedError,
    StorageDeniedError,
    StorageError,
    StorageUnsupportedError,
)
from airflow_llmengine.storage.failures import cannot, http_status
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.storage.urls import redact

PART_BYTES = 32 * 2**20
"""Size of a part of a multipart upload. All parts but the last are of this size, since some stores insist on it."""
_MAX_PARTS = 10_000

_LARGEST_COPY_BYTES = 5 * 2**30
"""What is larger, S3 copies in parts only."""

_NO_COPY = (400, 403, 405, 501)
"""How a store refuses to copy by itself what may well be read and written: one that can't, or with other rights."""

READ_AHEAD_BYTES = 8 * 2**20
_READ_TIMEOUT_SECONDS = 30
_KEYS_PER_DELETE = 1000

_MD5 = re.compile("[0-9a-f]{32}")

_WRITER_KEY = "llmengine-writer"
"""Metadata of each object: which call put it. Tells, after a lost answer, whether what stands there is ours."""


class S3Backend(Backend):
    """Commits are conditional puts; outputs are multipart uploads, which show nothing before they are complete."""

    def __init__(self, filesystem_class: Any, options: dict[str, Any], retry: RetryPolicy) -> None:
        super().__init__("s3://", retry)
        options = dict(options)
        # Trying again is done in one place, in RetryPolicy: three layers of it would multiply.
        options["config_kwargs"] = {
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "read_timeout": _READ_TIMEOUT_SECONDS,
            **(options.get("config_kwargs") or {}),
        }
        options |= {"use_listings_cache": False, "skip_instance_cache": True}
        # A small file is read by one request: several would mix the parts of a file that is replaced in between.
        options["max_concurrency"] = 1
        self._filesystem = filesystem_class(**options)
        self._filesystem.retries = 1
        self._metadata = dict(self._filesystem.s3_additional_kwargs.get("Metadata", {}))
        self._proven: set[str] = set()

    @override
    def stat(self, path: str) -> StoredFile | None:
        head = self.head(path)
        return None if head is None else StoredFile(path, head["ContentLength"], _tag(head), md5=_md5(head))

    @override
    def read(self, path: str) -> bytes:
        self.bucket_and_key(path)
        content: bytes = self._filesystem.cat_file(path)
        return content

    @override
    def read_start(self, path: str, size: int) -> bytes:
        self.bucket_and_key(path)
        try:
            content: bytes = self._filesystem.cat_file(path, start=0, end=size)
        except Exception as error:
            if http_status(error) != 416:
                raise
            # An empty file has no first byte.
            return b""
        return content

    @override
    def read_part(self, path: str, start: int, end: int, tag: str | None) -> bytes:
        bucket, key = self.bucket_and_key(path)
        arguments = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}"}
        if tag is not None:
            arguments["IfMatch"] = f'"{tag}"'

        async def read() -> bytes:
            # One request; s3fs's own call for a range knows no condition.
            answer = await self._filesystem._call_s3("get_object", **arguments)  # noqa: SLF001 - call_s3 can't read on
            async with answer["Body"] as body:
                try:
                    content: bytes = await body.read()
                except Exception:  # noqa: BLE001 - whatever it is, the rest did not come
                    # Of these aiohttp's own bear a status 400, which the store has not answered.
                    raise ConnectionError("the answer broke off") from None
                return content

        from fsspec.asyn import sync

        content: bytes = sync(self._filesystem.loop, read)
        return content

    @override
    def open_read(self, path: str) -> RawFile:
        self.bucket_and_key(path)
        file = self._filesystem.open(path, "rb", block_size=READ_AHEAD_BYTES, cache_type="readahead")
        if file.details.get("type") != "file":  # s3fs opens a prefix as an empty file
            raise FileNotFoundError(path)
        opened: RawFile = file
        return opened

    @override
    def create(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        bucket, _ = self.bucket_and_key(path)
        if bucket not in self._proven:
            self.require_commits(path)
        return super().create(path, data, durable=durable)

    @override
    def creator(self, path: str, data: bytes, *, durable: bool = True) -> Callable[[], bool]:
        metadata = self.new_metadata()

        def create() -> bool:
            try:
                self.request("put_object", path, Body=data, IfNoneMatch="*", Metadata=metadata)
            except Exception as error:
                if http_status(error) != 412:
                    raise
                # Somebody was first: another, or an earlier attempt of this very call whose answer was lost.
                return self.is_written_with(self.head(path), metadata)
            return True

        return create

    @override
    def replace(self, path: str, data: bytes) -> None:
        self.request("put_object", path, Body=data)

    @override
    def open_write(self, path: str) -> PendingWrite:
        self.bucket_and_key(path)
        return _S3Write(self, path)

    @override
    def move(self, path: str, target: str, tag: str | None) -> bool:
        bucket, key = self.bucket_and_key(path)
        head = self.head(path)
        if head is None:
            raise FileNotFoundError(path)
        changed = StorageChangedError(
            f"{cannot(self.caller)} move {redact(self.prefix + path)}: it is another file by now."
        )
        if tag is not None and _tag(head) != tag:
            raise changed
        if head["ContentLength"] > _LARGEST_COPY_BYTES:
            return False
        source = {"Bucket": bucket, "Key": key}
        try:
            # In case that it is replaced just now.
            self.request("copy_object", target, CopySource=source, CopySourceIfMatch=head["ETag"])
        except Exception as error:
            if http_status(error) == 412:
                raise changed from error
            if http_status(error) not in _NO_COPY:
                raise
            return False
        self.delete(path)
        return True

    @override
    def delete(self, path: str) -> None:
        self.request("delete_object", path)

    @override
    def delete_tree(self, path: str) -> None:
        bucket, _ = self.bucket_and_key(path)
        # All keys, the placeholders for folders too.
        keys = [found["Key"] for page in self._pages(path) for found in page.get("Contents", [])]
        for start in range(0, len(keys), _KEYS_PER_DELETE):
            objects = [{"Key": key} for key in keys[start : start + _KEYS_PER_DELETE]]
            answer = self._filesystem.call_s3(
                "delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True}
            )
            for refused in answer.get("Errors", []):
                _raise_refused(f"{self.prefix}{bucket}/{refused.get('Key', '')}", refused.get("Code", "an error"))

    @override
    def files(self, path: str) -> list[StoredFile]:
        return [file for page in self._pages(path, Delimiter="/") for file in self._contents(path, page)]

    @override
    def folders(self, path: str) -> list[str]:
        return [
            common["Prefix"].rstrip("/").rpartition("/")[2]
            for page in self._pages(path, Delimiter="/")
            for common in page.get("CommonPrefixes", [])
        ]

    @override
    def walk(self, path: str) -> Iterator[StoredFile]:
        for page in self._pages(path):
            yield from self._contents(path, page)

    @override
    def require_commits(self, path: str) -> None:
        bucket, _ = self.bucket_and_key(path)
        prove_commits(self, path)
        self._proven.add(bucket)

    @override
    def delete_leftovers(self, path: str, older_than_seconds: float) -> int:
        bucket, key = self.bucket_and_key(path)
        latest = time.time() - older_than_seconds
        answer = self._filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
        uploads = [
            upload["UploadId"]
            for upload in answer.get("Uploads", [])
            if upload["Key"] == key and upload["Initiated"].timestamp() <= latest
        ]
        for upload in uploads:
            self.abort_upload(path, upload)
        folder = path.rpartition("/")[0]
        probes = [
            found["Key"]
            for page in self._pages(folder, Delimiter="/")
            for found in page.get("Contents", [])
            if is_temporary(found["Key"].rpartition("/")[2]) and found["LastModified"].timestamp() <= latest
        ]
        for probe in probes:
            self.delete(f"{bucket}/{probe}")
        return len(uploads) + len(probes)

    @override
    def abort_writes(self, path: str) -> None:
        bucket, key = self.bucket_and_key(path)
        answer = self._filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/")
        for upload in answer.get("Uploads", []):
            self.abort_upload(f"{bucket}/{upload['Key']}", upload["UploadId"])

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """One request about the object at ``path``."""
        bucket, key = self.bucket_and_key(path)
        return self._filesystem.call_s3(method, Bucket=bucket, Key=key, **arguments)

    def head(self, path: str) -> Any:
        """What the store tells of the object; None if there is none."""
        if not self._filesystem.split_path(path)[1]:
            return None
        try:
            return self.request("head_object", path)
        except FileNotFoundError:
            return None
        except Exception as error:
            if http_status(error) in (400, 403):
                self._raise_reason(path)
            raise

    def _raise_reason(self, path: str) -> None:
        """Ask again by a request whose refusal says why: the answer to HEAD has no body, and so no code."""
        answer = self.request("get_object", path, Range="bytes=0-0")
        answer["Body"].close()

    def abort_upload(self, path: str, upload: str) -> None:
        """Throw away a multipart upload, unless it is gone already."""
        with contextlib.suppress(FileNotFoundError):
            self.request("abort_multipart_upload", path, UploadId=upload)

    def new_metadata(self) -> dict[str, str]:
        """Metadata for one new object: the user's, and a mark that no other call has."""
        return {**self._metadata, _WRITER_KEY: secrets.token_hex(16)}

    @staticmethod
    def is_written_with(head: Any, metadata: dict[str, str]) -> bool:
        """Whether the object was put by the call that these metadata were made for."""
        return head is not None and head.get("Metadata", {}).get(_WRITER_KEY) == metadata[_WRITER_KEY]

    def bucket_and_key(self, path: str) -> tuple[str, str]:
        """The two parts of a path; ``StorageUnsupportedError`` if there is no key."""
        bucket, key, _ = self._filesystem.split_path(path)
        if not bucket or not key:
            url = redact(self.prefix + path)
            raise StorageUnsupportedError(f"{url} names a bucket and no object in it; give a key too.")
        return bucket, key

    def _pages(self, path: str, **arguments: str) -> Iterator[Any]:
        bucket, key, _ = self._filesystem.split_path(path)
        arguments |= {"Bucket": bucket, "Prefix": f"{key}/" if key else ""}
        while True:
            page = self.attempt("list", path, lambda: self._filesystem.call_s3("list_objects_v2", **arguments))
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def _contents(self, path: str, page: Any) -> list[StoredFile]:
        bucket = self._filesystem.split_path(path)[0]
        return [
            StoredFile(f"{bucket}/{found['Key']}", found["Size"], _tag(found))
            for found in page.get("Contents", [])
            if not found["Key"].endswith("/")  # a placeholder that some tools make for a folder
        ]


class _S3Write(PendingWrite):
    """One put if it fits into a part, else a multipart upload."""

    def __init__(self, backend: S3Backend, path: str) -> None:
        self._backend = backend
        self._path = path
        self._metadata = backend.new_metadata()
        self._buffer = bytearray()
        self._upload: str | None = None
        self._parts: list[dict[str, Any]] = []

    @override
    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            taken = PART_BYTES - len(self._buffer)
            self._buffer += view[:taken]
            view = view[taken:]
            if len(self._buffer) == PART_BYTES:
                self._put_part()

    @override
    def commit(self) -> str | None:
        if self._upload is None:
            body = bytes(self._buffer)
            answer = self._attempt(
                lambda: self._backend.request("put_object", self._path, Body=body, Metadata=self._metadata)
            )
        else:
            if self._buffer:
                self._put_part()
            answer = self._attempt(self._complete)
        self._upload = None
        self._buffer.clear()
        return _tag(answer)

    @override
    def discard(self) -> None:
        self._buffer.clear()
        upload, self._upload = self._upload, None
        if upload is not None:
            self._backend.attempt(
                "discard what was written of", self._path, lambda: self._backend.abort_upload(self._path, upload)
            )

    def _put_part(self) -> None:
        if self._upload is None:
            answer = self._attempt(
                lambda: self._backend.request("create_multipart_upload", self._path, Metadata=self._metadata)
            )
            self._upload = answer["UploadId"]
        number = len(self._parts) + 1
        if number > _MAX_PARTS:
            limit = PART_BYTES * _MAX_PARTS // 10**9
            raise StorageError(
                f"Cannot write {redact(self._backend.prefix + self._path)}: it has more than {limit} GB."
            )
        body = bytes(self._buffer)
        answer = self._attempt(
            lambda: self._backend.request(
                "upload_part", self._path, UploadId=self._upload, PartNumber=number, Body=body
            )
        )
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        self._buffer.clear()

    def _complete(self) -> Any:
        try:
            return self._backend.request(
                "complete_multipart_upload",
                self._path,
                UploadId=self._upload,
                MultipartUpload={"Parts": self._parts},
            )
        except FileNotFoundError:
            # No such upload: an earlier attempt completed it and its answer was lost, or somebody aborted it.
            head = self._backend.head(self._path)
            if self._backend.is_written_with(head, self._metadata):
                return head
            raise

    def _attempt(self, function: Callable[[], Any]) -> Any:
        return self._backend.attempt("write", self._path, function)


def _tag(answer: Any) -> str:
    tag: str = answer["ETag"]
    return tag.strip('"')


def _md5(head: Any) -> str | None:
    """The etag, where it is the content's MD5: of an object put at once, and not encrypted with a key of its own."""
    tag = _tag(head)
    encrypted = head.get("SSECustomerAlgorithm") or str(head.get("ServerSideEncryption", "")).startswith("aws:")
    return tag if _MD5.fullmatch(tag) and not encrypted else None


def _raise_refused(url: str, code: str) -> None:
    kind = StorageDeniedError if code == "AccessDenied" else StorageError
    raise kind(f"Cannot delete {redact(url)}: the store answered {code}.")
