from __future__ import annotations

import gzip
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.identity import inline_identity
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.storage.errors import StorageNotFoundError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.readers import InputChangedError, InputCutError, InputInvalidError, open_input
from airflow_llmengine.worker.readers.decompression import UTF8_BOM
from tests.worker.readers.files import (
    COMPRESSIONS,
    json_lines,
    opened,
    opened_bytes,
    outcomes,
    request_for,
    until_refused,
    values,
    zstd,
)

RECORDS: list[Any] = [
    {"prompt": "a"},
    {"messages": [{"role": "user", "content": "b\u2028"}]},
    {"custom_id": "c", "body": {}},
]
CONTENT = {"prompts": ["a", "b"], "max_new_tokens": 5, "temperature": 0}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("bom", [b"", UTF8_BOM], ids=["", "bom"])
@pytest.mark.parametrize("name", ["input", "misnamed.json.gz", "misnamed.jsonl.zst", "misnamed.txt"])
def test_format_and_compression_are_found_out_by_content(
    tmp_path: Path, compression: str, bom: bytes, name: str
) -> None:
    for data, expected, found in [
        (json_lines(*RECORDS), "json_lines", RECORDS),
        (json.dumps(RECORDS, indent=1).encode(), "json_array", RECORDS),
        (json.dumps(RECORDS[0], indent=1).encode(), "json_document", RECORDS[:1]),
        (json.dumps(RECORDS[1]).encode(), "json_document", RECORDS[1:2]),
        (json.dumps(CONTENT).encode(), "v1_content", ["a", "b"]),
        (b"", "json_lines", []),
        (b"[]", "json_array", []),
    ]:
        reader = opened_bytes(tmp_path, COMPRESSIONS[compression](bom + data), name)
        assert reader.format == expected
        assert values(reader.records()) == found
        assert values(reader.records()) == found
        assert (reader.content is None) == (expected != "v1_content")


def test_inline_content_is_a_reader_too() -> None:
    content = CreateBatchCompletionsV1RequestContent.model_validate({**CONTENT, "prompts": ["{{ 7*7 }}", "", "é"]})
    reader = open_input(Storage(), request_for("x", input_data_path=None, content=content))
    assert (reader.format, reader.identity) == ("v1_content", inline_identity(content))
    assert reader.content is not None
    assert reader.content.given() == {**CONTENT, "prompts": []}
    first, _, third = reader.records()
    assert values(reader.records()) == ["{{ 7*7 }}", "", "é"]
    assert (first.location, third.size) == ("content.prompts[0]", 2)
    reader.check_unchanged()


def test_an_inline_prompt_that_is_no_text_is_a_row_error() -> None:
    content = CreateBatchCompletionsV1RequestContent.model_construct(
        prompts=["x\ud800y", "z"], max_new_tokens=5, temperature=0
    )
    request = request_for("x", input_data_path=None).model_copy(update={"content": content})
    reader = open_input(Storage(), request)
    assert outcomes(reader.records()) == ["! invalid_unicode", "z"]


def test_a_request_without_input_is_refused() -> None:
    with pytest.raises(InputInvalidError, match="neither content nor input_data_path"):
        open_input(Storage(), request_for("x", input_data_path=None))


def test_an_input_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageNotFoundError, match="missing"):
        opened(tmp_path / "missing")


def several_files(folder: Path) -> None:
    (folder / "day=1").mkdir(parents=True)
    (folder / "day=2").mkdir()
    (folder / "day=1" / "part-0").write_bytes(gzip.compress(json_lines({"prompt": 0}, {"prompt": 1})))
    (folder / "day=1" / "part-1").write_bytes(b"")
    (folder / "day=1" / "part-2").write_bytes(zstd(json.dumps([{"prompt": 2}, {"prompt": 3}]).encode()))
    (folder / "day=2" / "part-0").write_bytes(json.dumps({"prompt": 4}, indent=1).encode())
    (folder / "day=2" / "part-1").write_bytes(b'\n{"prompt": 5')
    (folder / "_SUCCESS").write_bytes(b"not an input")


@pytest.mark.parametrize("pattern", ["", "/", "/day=*/part-?"])
def test_several_files_are_one_sequence_of_records(tmp_path: Path, pattern: str) -> None:
    several_files(tmp_path)
    reader = opened(f"{tmp_path}{pattern}")
    assert reader.format == "json_lines"
    assert outcomes(reader.records()) == [*({"prompt": number} for number in range(5)), "! invalid_json"]
    assert [record.location for record in reader.records()] == [
        "line 1 of day=1/part-0",
        "line 2 of day=1/part-0",
        "element [0] of day=1/part-2",
        "element [1] of day=1/part-2",
        "the record in day=2/part-0",
        "line 2 of day=2/part-1",
    ]
    last = list(reader.records())[-1]
    assert last.error is not None
    assert last.error.index == 5
    reader.check_unchanged()


def test_a_content_object_must_be_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps(CONTENT))
    (tmp_path / "b").write_text(json.dumps(CONTENT))
    with pytest.raises(InputInvalidError, match=r"^a is a V1 content object, and input_data_path stands for 2 files: "):
        opened(tmp_path)
    (tmp_path / "a").write_bytes(json_lines({"prompt": "x"}, {"prompt": "y"}))
    found, error = until_refused(opened(tmp_path).records())
    assert len(found) == 2
    assert str(error).startswith("b is a V1 content object, and ")


def test_a_content_object_is_known_wherever_its_prompts_stand(tmp_path: Path) -> None:
    """The head that is looked at ends before the key, in a document over several lines."""
    document = json.dumps({"max_new_tokens": 5, "temperature": 0, "stop_sequences": ["x" * 2**21], **CONTENT}, indent=1)
    late = document.replace('"prompts"', '"p"', 1)[:-2] + ',\n"prompts": ["late"]}'
    reader = opened_bytes(tmp_path, document.encode())
    assert (reader.format, values(reader.records())) == ("v1_content", ["a", "b"])
    with pytest.raises(InputInvalidError, match=r"^input: .*\bp\b"):
        opened_bytes(tmp_path, late.encode())


def test_a_record_longer_than_the_head_is_read(tmp_path: Path) -> None:
    long = {"prompt": "x" * 2**21}
    for data, found in [
        (json.dumps(long).encode(), "json_lines"),
        (json.dumps(long, indent=1).encode(), "json_document"),
        (json.dumps([long]).encode(), "json_array"),
        (json.dumps(long).encode() + b"\n\n" + json.dumps(long).encode(), "json_lines"),
    ]:
        reader = opened_bytes(tmp_path, data)
        assert reader.format == found
        assert set(map(json.dumps, values(reader.records()))) == {json.dumps(long)}


def test_a_content_object_of_wrong_parameters_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(InputInvalidError, match=r"^input: temperature: is required"):
        opened_bytes(tmp_path, b'{"prompts": ["a"], "max_new_tokens": 3}')


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_cut_compressed_file_is_an_error_after_its_records(tmp_path: Path, compress: Any) -> None:
    data = compress(json_lines(*({"prompt": f"{number} {number**9}"} for number in range(20_000))))
    reader = opened_bytes(tmp_path, data[:-10])
    found, error = until_refused(reader.records())
    assert isinstance(error, InputCutError)
    assert len(found) > 10_000
    assert [record.value["prompt"] for record in found[:3]] == ["0 0", "1 1", "2 512"]
    assert all(record.error is None for record in found)


def test_a_replaced_input_is_noticed(tmp_path: Path) -> None:
    reader = opened_bytes(tmp_path, json_lines({"prompt": "a"}))
    reader.check_unchanged()
    (tmp_path / "input").write_bytes(json_lines({"prompt": "b"}))
    with pytest.raises(InputChangedError, match=r"input was changed while the job read it"):
        reader.check_unchanged()
    (tmp_path / "input").write_bytes(json_lines({"prompt": "a"}))
    reader.check_unchanged()
    (tmp_path / "input").unlink()
    with pytest.raises(InputChangedError, match="was changed"):
        reader.check_unchanged()
    with pytest.raises(InputChangedError, match="was changed"):
        list(reader.records())


def test_a_file_that_is_added_or_moved_is_noticed(tmp_path: Path) -> None:
    several_files(tmp_path)
    reader = opened(tmp_path)
    reader.check_unchanged()
    (tmp_path / "day=1" / "part-3").write_bytes(b"")
    with pytest.raises(InputChangedError):
        reader.check_unchanged()


def test_identity_is_the_contents(tmp_path: Path) -> None:
    one = opened_bytes(tmp_path, json_lines({"prompt": "a"})).identity
    assert opened_bytes(tmp_path, json_lines({"prompt": "a"})).identity == one
    assert opened_bytes(tmp_path, json_lines({"prompt": "b"})).identity != one


def test_files_are_closed_when_reading_stops_early(tmp_path: Path) -> None:
    """An open file left to the garbage collector is a ResourceWarning, which is an error here."""
    reader = opened_bytes(tmp_path, json_lines(*[{"prompt": "a"}] * 10))
    records = reader.records()
    assert isinstance(records, Generator)
    next(records)
    records.close()
