"""Valid inputs of every kind, and ways to spoil them: what the fuzzers start from."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.worker.readers.files import COMPRESSIONS

PRIVATE = "qzprivateqz"
"""A word that stands in every text of the valid inputs. No message may hold it."""

RECORDS: list[Any] = [
    {"prompt": f"{PRIVATE} a", "max_tokens": 4, "temperature": 0.5, "stop": [PRIVATE], "logit_bias": {"1": 2}},
    {"prompt": [PRIVATE, f"{PRIVATE} \u2028 \U0001f600"]},
    {"prompt": [[1, 2], [3]], "n": 2, "seed": 7, "user": PRIVATE},
    {"messages": [{"role": "user", "content": PRIVATE}], "max_completion_tokens": 3, "tool_choice": "none"},
    {
        "messages": [{"role": "user", "content": [{"type": "text", "text": PRIVATE}]}],
        "response_format": {"type": "text"},
    },
    {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": PRIVATE, "best_of": 1}},
    {
        "custom_id": "d",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": PRIVATE}], "stream_options": {"include_usage": False}},
    },
]

CONTENT: dict[str, Any] = {
    "prompts": [f"{PRIVATE} 1", PRIVATE, ""],
    "max_new_tokens": 3,
    "temperature": 0.5,
    "stop_sequences": [PRIVATE],
}

REQUEST: dict[str, Any] = {
    "input_data_path": "/in.jsonl",
    "output_data_path": "/out.json",
    "labels": {"team": "a"},
    "data_parallelism": 2,
    "max_runtime_sec": "60",
    "cpus": "500m",
    "memory": 2**30,
    "gpus": 1,
    "gpu_type": "nvidia-hopper-h100",
    "model_config": {"model": "m", "num_shards": 1, "chat_template": PRIVATE, "labels": {}, "seed": 1},
}

INLINE_REQUEST = {name: value for name, value in REQUEST.items() if name != "input_data_path"} | {"content": CONTENT}

FILES: dict[str, bytes] = {
    "lines": b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS),
    "array": json.dumps(RECORDS, ensure_ascii=False).encode(),
    "indented array": json.dumps(RECORDS, indent=1).encode(),
    "one document": json.dumps(RECORDS[0], indent=1).encode(),
    "content": json.dumps(CONTENT).encode(),
}
"""By format."""

TOKENS = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\n", b"\r\n", b" ", b"\0", b"-", b"."),
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 30, b"9" * 5000, b"null", b"true", b"0.1", b"-0"),
    *(b"\\ud800", b"\\udfff", b"\\u0000", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", "\u2028".encode(), b"\xc0\xaf"),
    *(
        b"[" * 300,
        b'{"a":' * 300,
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b'"prompts"',
        b'"prompt"',
        b'"messages"',
        b'"body"',
    ),
]
"""Pieces with which readers have had trouble."""

SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([2**63, -(2**63) - 1, 10**30, 10**4000, 10**4299, 1e300, "", "NaN", "1e5", "9" * 5000, "\ud800"])
    | st.text(max_size=5)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@st.composite
def spoiled_bytes(draw: st.DrawFn, valid: bytes) -> bytes:
    """The bytes with a few pieces cut out, put in, doubled or turned over."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["insert", "delete", "flip", "double", "cut", "replace"])):
            case "insert":
                data[place:place] = draw(st.sampled_from(TOKENS) | st.binary(max_size=4))
            case "delete":
                del data[place : place + draw(st.integers(1, 20))]
            case "flip" if place < len(data):
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "double":
                data[place:place] = data[place : place + draw(st.integers(1, 60))]
            case "cut":
                del data[place:]
            case "replace":
                piece = draw(st.sampled_from(TOKENS))
                data[place : place + len(piece)] = piece
    return bytes(data)


@st.composite
def spoiled_files(draw: st.DrawFn) -> bytes:
    """An input file of any format and compression, spoiled before it is compressed, or after, or both."""
    plain = draw(spoiled_bytes(FILES[draw(st.sampled_from(sorted(FILES)))]))
    stored = COMPRESSIONS[draw(st.sampled_from(sorted(COMPRESSIONS)))](plain)
    return draw(spoiled_bytes(stored)) if draw(st.booleans()) else stored


@st.composite
def spoiled_values(draw: st.DrawFn, valid: Any) -> Any:
    """The JSON value with something else at one or two places: another value, a field more or less, another name."""
    value = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 2))):
        value = _spoil(draw, value, valid)
    return value


@st.composite
def spoiled_json(draw: st.DrawFn, valid: list[Any]) -> bytes:
    """The text of one of the values, spoiled as a value or as bytes."""
    value = draw(st.sampled_from(valid))
    if draw(st.booleans()):
        return draw(spoiled_bytes(json.dumps(value).encode()))
    return json.dumps(draw(spoiled_values(value))).encode()


NUMBERS: st.SearchStrategy[Any] = st.sampled_from(
    [-1, 0, 2**31, 2**63, 10**18, 10**30, 10**400, 0.5, -0.5, 1e18, 1e300, float("nan"), float("inf"), float("-inf")]
)
NAMES: st.SearchStrategy[Any] = st.sampled_from(
    ["", ".", "..", "../../x", "a/b", "/etc", "x/../../y", "\0", "a\nb", "x" * 5000, "s3://a::b", "zip://::s3://b/c"]
)


def _alike(value: Any) -> st.SearchStrategy[Any]:
    """Another value, most often of the same kind."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return VALUES
    return st.one_of(NAMES if isinstance(value, str) else NUMBERS, VALUES)


def _spoil(draw: st.DrawFn, value: Any, example: Any) -> Any:
    inside = isinstance(value, dict | list) and len(value) > 0 and draw(st.integers(0, 4)) > 0
    if not inside:
        return draw(_alike(value))
    if isinstance(value, list):
        place = draw(st.integers(0, len(value) - 1))
        return [_spoil(draw, item, item) if index == place else item for index, item in enumerate(value)]
    name = draw(st.sampled_from(sorted(value)))
    match draw(st.sampled_from(["inside", "inside", "inside", "drop", "add", "rename"])):
        case "drop":
            return {key: item for key, item in value.items() if key != name}
        case "add":
            return {**value, draw(st.text(max_size=70)): draw(VALUES)}
        case "rename":
            return {(key + draw(st.text(max_size=2)) if key == name else key): item for key, item in value.items()}
    return {**value, name: _spoil(draw, value[name], example)}
