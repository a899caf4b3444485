"""Whatever JSON objects are written, in whatever dress, they come back equal and in order."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.worker.readers.content_file import read_parameters, read_prompts
from airflow_llmengine.worker.readers.decompression import UTF8_BOM, PlainFile
from airflow_llmengine.worker.readers.detection import PROMPTS_KEY, InputFormat, detect_format
from airflow_llmengine.worker.readers.json_array import read_json_array, read_json_object
from airflow_llmengine.worker.readers.json_lines import read_json_lines
from tests.worker.readers.files import COMPRESSIONS, Dribble, values

TEXT = st.text() | st.sampled_from(
    ['"', "\\", "\\u", '\\"', "]", "}", ",", "\u2028", "\u0085", "\r\n", "😀", "\ufeff", "\0"]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=12,
)
OBJECTS = st.lists(st.dictionaries(TEXT.filter(lambda key: key != PROMPTS_KEY), JSON, max_size=5), max_size=6)
BLOCKS = st.sampled_from([1, 2, 3, 5, 7, 16, 61, 2**18])
READERS = {
    InputFormat.JSON_LINES: read_json_lines,
    InputFormat.JSON_ARRAY: read_json_array,
    InputFormat.JSON_DOCUMENT: read_json_object,
}


def dressed(draw: st.DrawFn, text: str) -> PlainFile:
    data = draw(st.sampled_from([b"", UTF8_BOM])) + text.encode()
    stored = COMPRESSIONS[draw(st.sampled_from(sorted(COMPRESSIONS)))](data)
    return PlainFile(Dribble(stored, draw(BLOCKS)), "x")


@st.composite
def line_files(draw: st.DrawFn) -> tuple[list[Any], PlainFile]:
    objects = draw(OBJECTS)
    end = draw(st.sampled_from(["\n", "\r\n", "\n\n", " \t\n"]))
    text = "".join(json.dumps(item, ensure_ascii=draw(st.booleans())) + end for item in objects)
    return objects, dressed(draw, text if draw(st.booleans()) else text.removesuffix(end))


@st.composite
def array_files(draw: st.DrawFn) -> tuple[list[Any], PlainFile]:
    objects = draw(OBJECTS)
    text = json.dumps(objects, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 0, 2])))
    if draw(st.booleans()):
        text = "\r\n" + text.replace("\n", "\r\n") + " \n"
    return objects, dressed(draw, text)


@st.composite
def object_files(draw: st.DrawFn) -> tuple[list[Any], PlainFile]:
    item = draw(st.dictionaries(TEXT.filter(lambda key: key != PROMPTS_KEY), JSON, max_size=5))
    return [item], dressed(
        draw, json.dumps(item, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    )


@given(line_files() | array_files() | object_files(), BLOCKS)
def test_objects_come_back_equal_and_in_order(written: tuple[list[Any], PlainFile], block: int) -> None:
    objects, file = written
    found = detect_format(file.peek(2**20), "x")
    # As text, since 1 == 1.0 == True in Python.
    assert json.dumps(values(READERS[found](file.read, "x", block_bytes=block))) == json.dumps(objects)


@st.composite
def content_files(draw: st.DrawFn) -> tuple[list[str], list[str], PlainFile, PlainFile]:
    prompts, stops = draw(st.lists(TEXT, max_size=6)), draw(st.lists(TEXT, max_size=3))
    fields = {"prompts": prompts, "stop_sequences": stops, "max_new_tokens": 3, "temperature": 0.5}
    names = draw(st.permutations(sorted(fields)))
    text = json.dumps(
        {name: fields[name] for name in names},
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
    )
    return prompts, stops, dressed(draw, text), dressed(draw, text)


@given(content_files(), BLOCKS)
def test_prompts_come_back_equal_and_in_order(
    written: tuple[list[str], list[str], PlainFile, PlainFile], block: int
) -> None:
    prompts, stops, first, second = written
    assert detect_format(first.peek(2**20), "x") is InputFormat.V1_CONTENT
    content = read_parameters(first.read, "x", block_bytes=block)
    assert content is not None
    assert content.given() == {"prompts": [], "stop_sequences": stops, "max_new_tokens": 3, "temperature": 0.5}
    assert values(read_prompts(second.read, "x", block_bytes=block)) == prompts


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:\\ \n\r01na', max_size=40).map(str.encode), BLOCKS)
def test_the_way_that_a_document_is_cut_into_blocks_changes_nothing(data: bytes, block: int) -> None:
    """Any bytes: the same records, errors and refusals, whatever is read at a time."""

    def outcome(size: int, reader: Any) -> list[Any]:
        found: list[Any] = []
        try:
            found.extend(reader(PlainFile(Dribble(data, size), "x").read, "x", limit=20, block_bytes=size))
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
            found.append((type(error).__name__, str(error)))
        return found

    for reader in (read_json_lines, read_json_array, read_json_object, read_prompts):
        assert outcome(block, reader) == outcome(2**18, reader)
        assert all(
            not isinstance(item, tuple) or item[0] in ("InputInvalidError", "InputCutError")
            for item in outcome(block, reader)
        )
