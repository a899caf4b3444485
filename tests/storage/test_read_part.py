"""A part of a file, from every store."""

from __future__ import annotations

import pytest

from airflow_llmengine.storage.errors import StorageChangedError, StorageNotFoundError
from tests.storage.conftest import Place


def test_a_part_is_read_from_every_store(place: Place) -> None:
    file = place.at("file")
    file.replace(b"0123456789")
    entry = file.info()
    assert entry is not None
    assert file.read_part(2, 5, entry.identity) == b"234"
    assert file.read_part(0, 10, entry.identity) == b"0123456789"
    assert file.read_part(9, 10) == b"9"


def test_a_part_that_is_not_there(place: Place) -> None:
    file = place.at("file")
    with pytest.raises(StorageNotFoundError):
        file.read_part(0, 1)
    file.replace(b"0123456789")
    with pytest.raises(StorageChangedError, match="replaced by a shorter file"):
        file.read_part(8, 12)


def test_no_part_of_another_content_is_read(s3: Place) -> None:
    file = s3.at("file")
    file.replace(b"first")
    entry = file.info()
    assert entry is not None
    file.replace(b"later")
    with pytest.raises(StorageChangedError, match="it was replaced while it was being read"):
        file.read_part(0, 5, entry.identity)
