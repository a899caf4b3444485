"""S3, with the faults that a network and a store have."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_llmengine.storage import s3 as s3_module
from airflow_llmengine.storage.errors import (
    StorageChangedError,
    StorageDeniedError,
    StorageError,
    StorageExpiredError,
    StorageMisdirectedError,
    StorageNoBucketError,
    StorageNotFoundError,
    StorageUnsupportedError,
)
from airflow_llmengine.storage.filesystem import Storage, content_identity
from airflow_llmengine.storage.output import OutputWriter
from airflow_llmengine.storage.retrying import RetryPolicy
from tests.storage.conftest import BUCKET, QUICK, Place
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, Fault, S3Server

PART = 5 * 2**20
"""The smallest part that S3 takes."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "PART_BYTES", PART)


def uploads(server: S3Server, place: Place) -> list[Any]:
    """Multipart uploads that were begun and neither completed nor aborted."""
    prefix = place.base.removeprefix(f"s3://{BUCKET}/")
    found: list[Any] = server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", [])
    return found


# Commits


def test_two_writers_over_two_connections_race_and_one_wins(s3: Place, s3_server: S3Server) -> None:
    storages = [s3.storage, Storage({"s3": s3_server.options}, retry=QUICK)]
    storages[1].location(f"{s3.base}/warm").create(b"")
    for number in range(5):
        start = threading.Barrier(2)

        def create(index: int, number: int = number, start: threading.Barrier = start) -> bool:
            start.wait()
            return storages[index].location(f"{s3.base}/{number}").create(b"same content")

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(create, (0, 1))) == [False, True]


@pytest.mark.parametrize("status", [500, 503, None])
def test_a_create_whose_answer_is_lost_is_known_for_ours(s3: Place, s3_server: S3Server, status: int | None) -> None:
    s3_server.faults.append(Fault("PUT", executed=True, status=status))

    assert s3.at("file").create(b"content")

    assert s3_server.count("PUT", "/file") == 2
    assert s3.at("file").read_bytes() == b"content"
    assert not s3.at("file").create(b"content")


def test_a_create_that_was_lost_and_taken_by_another_is_not_ours(s3: Place, s3_server: S3Server) -> None:
    s3.put("file")
    s3_server.faults.append(Fault("PUT", executed=False))

    assert not s3.at("file").create(b"file")


def test_a_conflict_with_a_write_in_progress_is_tried_again(s3: Place, s3_server: S3Server) -> None:
    s3_server.faults.append(Fault("PUT", status=409, code="ConditionalRequestConflict"))

    assert s3.at("file").create(b"content")


def test_the_users_metadata_stay(s3_server: S3Server) -> None:
    options = {**s3_server.options, "s3_additional_kwargs": {"Metadata": {"team": "data"}}}
    storage = Storage({"s3": options}, retry=QUICK)

    assert storage.location(f"s3://{BUCKET}/with-metadata/a").create(b"x")
    with storage.location(f"s3://{BUCKET}/with-metadata/b").writer() as out:
        out.write(b"x")

    for name in ("a", "b"):
        head = s3_server.client.head_object(Bucket=BUCKET, Key=f"with-metadata/{name}")
        assert head["Metadata"]["team"] == "data"


def test_a_store_that_overwrites_is_refused(s3: Place, s3_server: S3Server) -> None:
    s3_server.ignores_conditions = True
    storage = Storage({"s3": s3_server.options}, retry=QUICK)

    for attempt in (
        storage.location(f"{s3.base}/a").require_commits,
        lambda: storage.location(f"{s3.base}/a").create(b""),
    ):
        with pytest.raises(StorageUnsupportedError, match=f"The store of {s3.base}/a overwrites files"):
            attempt()

    assert s3.at("").list() == []


def test_a_store_is_proven_once(s3: Place, s3_server: S3Server) -> None:
    storage = Storage({"s3": s3_server.options}, retry=QUICK)
    storage.location(f"{s3.base}/a").create(b"")
    s3_server.seen.clear()

    storage.location(f"{s3.base}/b").create(b"")

    assert [(method, path) for method, path, _ in s3_server.seen] == [("PUT", f"/{s3.at('b').url[5:]}")]


# Large outputs


@pytest.mark.usefixtures("small_parts")
def test_a_large_output_is_put_part_by_part_and_appears_whole(s3: Place, s3_server: S3Server) -> None:
    with OutputWriter(s3.at("output")) as writer:
        for number in range(13):
            writer.write(bytes([number]) * 2**20)
        assert not s3.at("output").exists()
        assert s3_server.count("PUT", "/output") == 2
    written = writer.close()

    info = s3.at("output").info()
    assert info is not None
    assert (info.size, info.identity) == (13 * 2**20, f"etag:{written.etag}")
    assert written.etag is not None
    assert written.etag.endswith("-3")
    assert content_identity(s3.at("output")) == f"sha256:{written.sha256}"
    assert uploads(s3_server, s3) == []


@pytest.mark.usefixtures("small_parts")
def test_an_exception_aborts_the_upload(s3: Place, s3_server: S3Server) -> None:
    def write_half() -> None:
        with s3.at("output").writer() as out:
            out.write(b"x" * (PART + 1))
            assert len(uploads(s3_server, s3)) == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()

    assert uploads(s3_server, s3) == []
    assert not s3.at("output").exists()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", query="uploads"),
        Fault("PUT", query="partNumber=1"),
        Fault("PUT", query="partNumber=2", executed=True, status=None),
        Fault("POST", query="uploadId", executed=False),
        Fault("POST", query="uploadId", executed=True),
        Fault("POST", query="uploadId", executed=True, status=None),
    ],
    # Equal in every process that collects the tests, which str() of a function is not.
    ids=lambda fault: f"{fault.method}-{fault.query}-{'answer lost' if fault.executed else 'refused'}-{fault.status}",
)
def test_a_fault_in_an_upload_is_overcome(s3: Place, s3_server: S3Server, fault: Fault) -> None:
    s3_server.faults.append(Fault(**{**vars(fault), "times": 1}))

    with OutputWriter(s3.at("output")) as writer:
        writer.write(b"x" * (PART + 1))
    written = writer.close()

    assert not s3_server.faults[0].times
    info = s3.at("output").info()
    assert info is not None
    assert (info.size, info.identity) == (PART + 1, f"etag:{written.etag}")


@pytest.mark.usefixtures("small_parts")
def test_a_completed_upload_whose_answer_is_lost_is_known_for_ours(s3: Place, s3_server: S3Server) -> None:
    s3_server.faults += [
        Fault("POST", query="uploadId", executed=True),
        Fault("POST", query="uploadId", status=404, code="NoSuchUpload"),  # what S3 may answer to a second completion
    ]

    with OutputWriter(s3.at("output")) as writer:
        writer.write(b"x" * (PART + 1))

    info = s3.at("output").info()
    assert info is not None
    assert info.identity == f"etag:{writer.close().etag}"


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_fails_for_good_is_aborted(s3: Place, s3_server: S3Server) -> None:
    s3_server.faults.append(Fault("PUT", query="partNumber=2", times=100))

    failure = f"Cannot write {s3.at('output').url}: the store answered 503"
    with pytest.raises(StorageError, match=failure), OutputWriter(s3.at("output")) as writer:
        writer.write(b"x" * (PART + 1))

    assert uploads(s3_server, s3) == []
    assert not s3.at("output").exists()


@pytest.mark.usefixtures("small_parts")
def test_uploads_that_nobody_ends_are_leftovers(s3: Place, s3_server: S3Server) -> None:
    pending, other = s3.at("output").open_write(), s3.at("output-2").open_write()
    for write in (pending, other):
        write.write(b"x" * PART)

    a_century = 100 * 365 * 86_400  # moto says of each upload that it was begun in 2010
    assert s3.at("output").delete_leftovers(older_than_seconds=a_century) == 0
    assert s3.at("output").delete_leftovers(older_than_seconds=3600) == 1
    assert [upload["Key"].rpartition("/")[2] for upload in uploads(s3_server, s3)] == ["output-2"]
    s3_server.faults.append(Fault("POST", query="uploadId", status=404, code="NoSuchUpload"))  # moto answers 500
    with pytest.raises(StorageNotFoundError):
        pending.commit()
    pending.discard()
    other.discard()


def test_probes_that_nobody_deleted_are_leftovers(s3: Place) -> None:
    s3.put(".llmengine-0123456789abcdef01234567.tmp", "output", "folder/.llmengine-0123456789abcdef01234567.tmp")

    assert s3.at("output").delete_leftovers(older_than_seconds=3600) == 0
    assert s3.at("output").delete_leftovers(older_than_seconds=-3600) == 1
    assert not s3.at(".llmengine-0123456789abcdef01234567.tmp").exists()
    assert s3.at("output").exists()
    assert s3.at("folder/.llmengine-0123456789abcdef01234567.tmp").exists()


# Reading and listing


def test_a_file_that_is_replaced_while_it_is_read_is_told(s3: Place) -> None:
    s3.at("file").replace(b"a" * (20 * 2**20))

    with s3.at("file").open_read() as file:
        assert file.read(10) == b"a" * 10
        s3.at("file").replace(b"b" * (20 * 2**20))
        with pytest.raises(StorageChangedError, match="file: it was replaced while it was being read"):
            file.read()


def test_reading_goes_on_where_it_was_cut(s3: Place, s3_server: S3Server) -> None:
    content = bytes(range(256)) * (80 * 2**10)
    s3.at("file").replace(content)
    with s3.at("file").open_read() as file:
        start = file.read(100)
        s3_server.faults += [Fault("GET"), Fault("GET", status=None), Fault("GET", status=500, code="InternalError")]
        assert start + file.read() == content

    assert [fault.times for fault in s3_server.faults] == [0, 0, 0]


def test_long_listings_come_in_pages(s3: Place, s3_server: S3Server) -> None:
    for number in range(7):
        s3.put(f"folder/{number}", f"folder/below-{number}/file")
    pages: Any = s3_module.S3Backend._pages

    def small_pages(self: Any, path: str, **arguments: Any) -> Any:
        return pages(self, path, MaxKeys=3, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3_module.S3Backend, "_pages", small_pages)
        assert [entry.name for entry in s3.at("folder").list()] == [str(number) for number in range(7)]
        assert s3.at("folder").folders() == [f"below-{number}" for number in range(7)]
        s3_server.faults.append(Fault("GET", query="continuation-token"))
        assert len(list(s3.at("folder").walk())) == 14
        s3.at("folder").delete_tree()

    assert list(s3.at("folder").walk()) == []


def test_placeholders_of_folders_are_no_files(s3: Place, s3_server: S3Server) -> None:
    prefix = s3.base.removeprefix(f"s3://{BUCKET}/")
    for key in (f"{prefix}/folder/", f"{prefix}/folder/empty/"):
        s3_server.client.put_object(Bucket=BUCKET, Key=key, Body=b"")
    s3.put("folder/file")

    assert [entry.name for entry in s3.at("folder").list()] == ["file"]
    assert [entry.name for entry in s3.at("folder").walk()] == ["file"]
    assert s3.at("folder").folders() == ["empty"]
    s3.at("folder").delete_tree()
    assert s3.at("folder").folders() == []


def test_a_whole_bucket_is_not_deleted(s3_server: S3Server, s3: Place) -> None:
    s3.put("file")

    with pytest.raises(StorageUnsupportedError, match="names a bucket and no object in it"):
        s3.storage.location(f"s3://{BUCKET}").delete_tree()

    assert s3.at("file").exists()


# Failures


def test_transient_failures_are_tried_again(s3: Place, s3_server: S3Server) -> None:
    s3.put("file")
    s3_server.faults += [
        Fault("GET", status=500, code="InternalError"),
        Fault("GET", status=503, code="SlowDown"),
        Fault("GET", status=None),
    ]

    assert s3.at("file").read_bytes() == b"file"


def test_trying_again_ends(s3: Place, s3_server: S3Server) -> None:
    s3_server.faults.append(Fault("GET", times=100))

    with pytest.raises(StorageError, match="the store answered 503 ServiceUnavailable; try again later") as caught:
        s3.at("file").read_bytes()

    assert s3_server.count("GET", "/file") == QUICK.attempts
    assert caught.value.__cause__ is not None


def test_trying_again_ends_in_time(s3: Place, s3_server: S3Server) -> None:
    policy = RetryPolicy(attempts=1000, total_seconds=0.5, first_wait_seconds=0.05, longest_wait_seconds=0.1)
    storage = Storage({"s3": s3_server.options}, retry=policy)
    storage.location(s3.base).info()
    s3_server.faults.append(Fault("GET", times=1000))

    with pytest.raises(StorageError):
        storage.location(f"{s3.base}/file").read_bytes()

    assert 1 < s3_server.count("GET", "/file") < 100


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Fault("GET", status=403, code="AccessDenied"), StorageDeniedError, "answered 403 AccessDenied"),
        (Fault("GET", status=403, code="InvalidAccessKeyId"), StorageDeniedError, "answered 403 InvalidAccessKeyId"),
        (Fault("GET", status=403, code="RequestTimeTooSkewed"), StorageDeniedError, "set the clock of the machine"),
        (Fault("GET", status=400, code="ExpiredToken"), StorageExpiredError, "temporary credentials have expired"),
        (Fault("GET", status=404, code="NoSuchKey"), StorageNotFoundError, "it does not exist"),
        (Fault("GET", status=404, code="NoSuchBucket"), StorageNoBucketError, "the bucket does not exist"),
        (Fault("GET", status=400, code="AuthorizationHeaderMalformed"), StorageMisdirectedError, "correct region_name"),
        (Fault("GET", status=301, code="PermanentRedirect", times=9), StorageMisdirectedError, "correct region_name"),
        (Fault("GET", status=501, code="NotImplemented"), StorageUnsupportedError, "this store can't do that"),
        (Fault("GET", status=400, code="Oddity"), StorageError, "answered 400 Oddity"),
    ],
    ids=lambda value: value.code if isinstance(value, Fault) else "",
)
def test_lasting_failures_are_told_at_once(
    s3: Place, s3_server: S3Server, fault: Fault, kind: type[StorageError], message: str
) -> None:
    s3_server.faults.append(Fault(**vars(fault)))

    with pytest.raises(StorageError, match=message) as caught:
        s3.at("file").read_bytes()

    assert type(caught.value) is kind
    assert caught.value.retry_helps == (kind in (StorageError, StorageExpiredError))
    # AWS's own library looks for the bucket's region when it is redirected, and asks there.
    assert s3_server.count("GET", "/file") == (2 if fault.status == 301 else 1)
    assert f"Cannot read {s3.at('file').url}: " in str(caught.value)
    assert str(caught.value).endswith(".")
    assert ACCESS_KEY not in str(caught.value)
    assert SECRET_KEY not in str(caught.value)


def test_a_look_up_that_is_denied_is_not_an_absence(s3: Place, s3_server: S3Server) -> None:
    s3.put("file")
    s3_server.faults.append(Fault("HEAD", status=403))

    with pytest.raises(StorageDeniedError, match=r"Cannot look up .*/file: the store answered 403;"):
        s3.at("file").exists()


def test_why_a_look_up_is_denied_is_asked(s3: Place, s3_server: S3Server) -> None:
    """The answer to HEAD has no body."""
    s3_server.faults += [Fault("HEAD", status=403), Fault("GET", status=403, code="RequestTimeTooSkewed")]

    with pytest.raises(StorageDeniedError, match=r"Cannot look up .*/file: .* RequestTimeTooSkewed; set the clock"):
        s3.at("file").exists()


def test_a_bucket_that_does_not_exist_is_told(s3: Place) -> None:
    file = s3.storage.location("s3://no-such-bucket/file")

    for action in (
        file.list,
        lambda: list(file.walk()),
        lambda: file.create(b""),
        file.require_commits,
        file.read_bytes,
    ):
        with pytest.raises(StorageNotFoundError, match="the bucket does not exist; create it or correct its name"):
            action()
    with pytest.raises(StorageNotFoundError, match="the bucket does not exist"), file.writer() as out:
        out.write(b"x")


def test_a_name_that_can_be_no_bucket_is_told(s3: Place) -> None:
    with pytest.raises(StorageUnsupportedError, match="not a valid one"):
        s3.storage.location("s3://UPPER CASE/file").read_bytes()


def test_no_connection_is_told_with_the_endpoint(unused_port: int) -> None:
    options = {"endpoint_url": f"http://127.0.0.1:{unused_port}", "key": ACCESS_KEY, "secret": SECRET_KEY}
    storage = Storage({"s3": options}, retry=QUICK)

    with pytest.raises(StorageError) as caught:
        storage.location("s3://bucket/file").read_bytes()

    assert str(caught.value) == (
        f"Cannot read s3://bucket/file: no answer from http://127.0.0.1:{unused_port}; "
        "check the endpoint and the network."
    )


def test_an_endpoint_that_is_no_url_is_told_and_not_quoted() -> None:
    storage = Storage({"s3": {"endpoint_url": "minio.internal:9000", "key": "a", "secret": "b"}}, retry=QUICK)
    with pytest.raises(StorageMisdirectedError, match="its endpoint_url is no URL; write for example https://") as told:
        storage.location("s3://bucket/key").info()
    assert "minio" not in str(told.value)


def test_missing_credentials_are_told(s3_server: S3Server) -> None:
    storage = Storage({"s3": {"endpoint_url": s3_server.endpoint}}, retry=QUICK)

    with pytest.raises(StorageDeniedError, match="no valid credentials were found"):
        storage.location(f"s3://{BUCKET}/file").read_bytes()


def test_credentials_are_shown_nowhere(s3: Place, s3_server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="airflow_llmengine")
    s3_server.faults.append(Fault("GET", status=403, code="AccessDenied"))
    location = s3.at("file")

    with pytest.raises(StorageError) as caught:
        location.read_bytes()

    backend, _ = s3.storage.backend_of(location.url)
    shown = [repr(s3.storage), str(s3.storage), repr(location), str(location), str(caught.value), repr(caught.value)]
    shown += [repr(backend), caplog.text, *traceback.format_exception_only(caught.value)]
    assert not any(ACCESS_KEY in text or SECRET_KEY in text for text in shown)


# Processes


def test_a_storage_is_usable_after_a_fork(s3_server: S3Server, s3: Place) -> None:
    script = f"""
        import os
        from airflow_llmengine.storage.filesystem import Storage

        storage = Storage({{"s3": {s3_server.options!r}}})
        file = storage.location("{s3.base}/file")
        assert file.create(b"parent")
        child = os.fork()
        if not child:
            assert file.read_bytes() == b"parent"
            assert not file.create(b"child")
            assert storage.location("{s3.base}/child").create(b"child")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert storage.location("{s3.base}/child").read_bytes() == b"child"
    """

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
