from __future__ import annotations

import pytest

from airflow_llmengine.storage.errors import StorageUnsupportedError
from airflow_llmengine.storage.filesystem import FileEntry, Storage
from airflow_llmengine.storage.urls import endpoint_of, parse_url, redact


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("/a/b", "/a/b"),
        ("/a//b/", "/a/b"),
        ("/a/./c/../b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("FILE:///a/b/", "/a/b"),
        ("/", "/"),
        ("/a b?c=d#e%20", "/a b?c=d#e%20"),
        ("/a/b::c", "/a/b::c"),
        ("memory://a/b", "memory://a/b"),
        ("memory:///a/b/", "memory://a/b"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("S3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket/a//b", "s3://bucket/a//b"),
        ("s3n://bucket", "s3://bucket"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
    ],
)
def test_a_place_has_one_canonical_url(url: str, canonical: str) -> None:
    assert parse_url(url).url == canonical
    assert parse_url(canonical).url == canonical


def test_the_home_folder_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")

    assert parse_url("~/a").url == "/home/somebody/a"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "names no place"),
        ("a\0b", "names no place"),
        ("file://host/a", "names a host"),
        ("file://", "names a host"),
        ("simplecache::s3://bucket/a", "is a chained URL"),
        ("s3://bucket/a?versionId=abc", "names one version of an object"),
    ],
)
def test_what_names_no_place_is_refused(url: str, message: str) -> None:
    with pytest.raises(StorageUnsupportedError, match=message):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host/a?X-Amz-Signature=secret&b=c", "https://host/a"),
        ("https://secret@host:80/a#b", "https://host:80/a#b"),
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
        ("s3://bucket/a?AWSAccessKeyId=secret", "s3://bucket/a"),
        ("simplecache::s3://key:secret@bucket/a?b=secret", "simplecache::s3://bucket/a"),
        ("s3://bucket/part-?.jsonl", "s3://bucket/part-?.jsonl"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("/a/b?c=d", "/a/b?c=d"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert "secret" not in repr(FileEntry(url, "a", 1))


def test_an_endpoint_is_shown_without_secrets() -> None:
    assert endpoint_of("https://user:secret@host:9000/bucket?a=secret") == "https://host:9000"
    assert endpoint_of("nonsense") == "the endpoint"


@pytest.mark.parametrize(
    ("url", "names_file"),
    [
        ("/", False),
        ("/a", True),
        ("memory://", False),
        ("memory://a", True),
        ("s3://bucket", False),
        ("s3://bucket/", False),
        ("s3://bucket/a", True),
        ("gs://bucket", False),
    ],
)
def test_a_place_may_be_no_place_for_a_file(url: str, names_file: bool) -> None:
    assert Storage().location(url).names_file is names_file


def test_options_are_not_shown() -> None:
    storage = Storage({"s3": {"secret": "hidden"}, "gs": {}})

    assert repr(storage) == str(storage) == "Storage(options for: gs, s3)"
    assert repr(Storage()) == "Storage(options for: none)"
    assert "hidden" not in repr(storage.location("s3://bucket/a"))
