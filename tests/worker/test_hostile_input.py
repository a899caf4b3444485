"""Input that is broken, or made to break a reader, through the worker's own command: a row error or one job error.

Each job has one good record beside the hostile one, so that it shows what the hostile one costs. Peak memory is what
the operating system counted of the worker process, above that of a worker with good records only.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.readers.limits import MAX_RECORD_BYTES

GOOD = b'{"prompt": "good", "max_tokens": 4}'
SECRET = "private words of a prompt"
TIMEOUT_SECONDS = 120
"""Far above what any of them takes on a busy machine: who is still at work then hangs."""

ALLOWED_GROWTH_MB = 50
"""What lines of ordinary length may cost."""

READERS = 2
"""The input is read by who works on it, and at the same time by who counts it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended."""

    exit_code: int
    log: str
    peak_mb: float
    folder: Path

    @property
    def results(self) -> list[dict[str, Any]]:
        loaded: list[dict[str, Any]] = json.loads((self.folder / "output.json").read_text())
        return loaded

    @property
    def last_line(self) -> str:
        return self.log.strip().splitlines()[-1]


def complete(folder: Path, write: Callable[[Path], None] | bytes, **request: Any) -> Ended:
    """Run a job over an input; a worker that hangs fails the test."""
    folder.mkdir(exist_ok=True)
    path = folder / "input"
    if isinstance(write, bytes):
        path.write_bytes(write)
    else:
        write(path)
    given = {
        "input_data_path": str(path),
        "output_data_path": str(folder / "output.json"),
        "model_config": {"model": "stand-in"},
        **request,
    }
    (folder / "request.json").write_text(json.dumps(given))
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(
            ["timeout", "--signal=KILL", str(TIMEOUT_SECONDS), sys.executable, "-c", MEASURED, str(folder)],
            env={**os.environ, "LLMENGINE_ENGINE": "echo"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        out, _ = worker.communicate()
    text = (folder / "log").read_text()
    assert worker.returncode == 0, f"the worker hangs, or was killed: {text}"
    exit_code, peak = out.split()[-2:]
    assert "Traceback" not in text
    assert SECRET not in text
    return Ended(int(exit_code), text, int(peak) / 1024, folder)


# In a process between, since the system counts the peak over all children of one.
MEASURED = """
import resource, subprocess, sys
folder = sys.argv[1]
done = subprocess.run(
    [sys.executable, "-m", "airflow_llmengine.worker", "run", folder + "/request.json"], stdout=subprocess.DEVNULL
)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def ordinary_peak_mb(tmp_path_factory: pytest.TempPathFactory) -> float:
    return complete(tmp_path_factory.mktemp("ordinary") / "job", GOOD).peak_mb


def lines(*hostile: bytes) -> bytes:
    return b"\n".join([GOOD, *hostile, GOOD]) + b"\n"


def nested(depth: int) -> bytes:
    return b'{"prompt": ' + b"[" * depth + b"1" + b"]" * depth + b"}"


def with_prompt(**fields: Any) -> bytes:
    return json.dumps({"prompt": SECRET, **fields}).encode()


ROW_ERRORS: dict[str, tuple[bytes, str, str]] = {
    "invalid UTF-8": (b'{"prompt": "\xff\xfe"}', "invalid_unicode", "line 2 of input: byte 13 of it is not UTF-8"),
    "a surrogate in UTF-8": (b'{"prompt": "\xed\xa0\x80"}', "invalid_unicode", "is not UTF-8"),
    "half a surrogate pair": (b'{"prompt": "\\ud800"}', "invalid_unicode", "one half of a surrogate pair"),
    "10 000 deep": (nested(10_000), "invalid_json", "nested more than 256 deep"),
    "10 000 deep and open": (b"[" * 10_000, "invalid_json", "nested more than 256 deep"),
    "10 000 objects deep": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "invalid_json", "nested more than 256 deep"),
    "NaN": (b'{"prompt": "x", "temperature": NaN}', "invalid_json", "NaN is not a number in JSON"),
    "Infinity": (b'{"prompt": "x", "temperature": Infinity}', "invalid_json", "Infinity is not a number in JSON"),
    "-Infinity": (b'{"prompt": "x", "temperature": -Infinity}', "invalid_json", "Infinity is not a number in JSON"),
    "1e999": (b'{"prompt": "x", "temperature": 1e999}', "invalid_json", "too large for a 64-bit float"),
    "NaN as text": (with_prompt(temperature="NaN"), "invalid_record", "temperature: must be a number"),
    "a key twice": (b'{"prompt": "x", "prompt": "y"}', "invalid_json", "one key twice"),
    "a key twice below": (b'{"messages": [{"role": "user", "role": "x"}]}', "invalid_json", "one key twice"),
    "a seed of 65 bits": (with_prompt(seed=2**64), "invalid_record", "seed: holds a whole number of more than 64 bits"),
    "a token id of 65 bits": (b'{"prompt": [1, 18446744073709551616]}', "invalid_record", "prompt: holds a whole"),
    "4 000 digits": (b'{"prompt": "x", "max_tokens": ' + b"9" * 4000 + b"}", "invalid_record", "max_tokens: holds"),
    "5 000 digits": (b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}", "invalid_json", "thousands of digits"),
    "65 bits as a float": (b'{"prompt": "x", "seed": 1e30}', "invalid_record", "seed: holds a whole number"),
    "65 bits as text": (with_prompt(seed="9" * 30), "invalid_record", "seed: holds a whole number"),
}


def test_each_hostile_line_is_its_own_row_error_and_memory_is_bounded(tmp_path: Path, ordinary_peak_mb: float) -> None:
    """All of them in one job, which is how they would come."""
    ended = complete(tmp_path, b"".join(lines(hostile) for hostile, _type, _message in ROW_ERRORS.values()))
    assert ended.exit_code == ExitCode.DONE, ended.log
    results = ended.results
    assert len(results) == 3 * len(ROW_ERRORS)
    for place, (what, (_line, error_type, message)) in enumerate(ROW_ERRORS.items()):
        before, failed, after = results[3 * place : 3 * place + 3]
        assert before["choices"][0]["text"] == after["choices"][0]["text"] == "good"
        error = failed["error"]
        assert (error["type"], error["index"]) == (error_type, 3 * place + 1), what
        assert message.replace("line 2", f"line {3 * place + 2}") in error["message"], what
        assert error["message"].startswith(f"line {3 * place + 2} of input: "), what
        assert len(error["message"]) < 1500, what
        assert SECRET not in error["message"], what
    assert ended.peak_mb - ordinary_peak_mb < ALLOWED_GROWTH_MB


@pytest.mark.slow
@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("as_array", [False, True], ids=["lines", "array"])
def test_a_line_of_100_mb_is_a_row_error_and_never_held_whole(
    tmp_path: Path, ordinary_peak_mb: float, as_array: bool, compress: bool
) -> None:
    def write(path: Path) -> None:
        before, between, after = (b"[", b",\n", b"]") if as_array else (b"", b"\n", b"\n")
        with gzip.open(path, "wb", 1) if compress else path.open("wb") as file:
            file.write(before + GOOD + between + b'{"prompt": "')
            for _ in range(100):
                file.write(b"x" * 10**6)
            file.write(b'"}' + between + GOOD + after)

    ended = complete(tmp_path, write)
    assert ended.exit_code == ExitCode.DONE, ended.log
    first, large, last = ended.results
    assert first["choices"][0]["text"] == last["choices"][0]["text"] == "good"
    assert large["error"]["type"] == "record_too_large"
    assert f"it takes 100000014 bytes, and a record may take {MAX_RECORD_BYTES} at most" in large["error"]["message"]
    assert ended.peak_mb - ordinary_peak_mb < READERS * MAX_RECORD_BYTES / 2**20 + ALLOWED_GROWTH_MB


DENSE: dict[str, tuple[Callable[[], bytes], str]] = {
    "fields": (
        lambda: b'{"prompt": "x", ' + b", ".join(b'"k%d": 1' % n for n in range(10**6)) + b"}",
        "1000001 fields",
    ),
    "entries": (
        lambda: b'{"prompt": "x", "logit_bias": {' + b", ".join(b'"k%d": "x"' % n for n in range(10**6)) + b"}}",
        "logit_bias: it has 1000000 entries",
    ),
    "parts": (
        lambda: b'{"messages": [{"role": "user", "content": [' + b",".join([b'{"type":"image"}'] * 10**6) + b"]}]}",
        "messages[0].content[0].type: must be one of text, ",
    ),
    "brackets": (
        lambda: b'{"prompt": [[]' + b",[]" * ((MAX_RECORD_BYTES - 100) // 3) + b"]}",
        "more than 1048576 arrays and objects",
    ),
    "numbers": (
        lambda: b'{"prompt": "x", "stop_token_ids": [-5' + b",-5" * ((MAX_RECORD_BYTES - 100) // 3) + b', "x"]}',
        "stop_token_ids",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DENSE)
def test_a_record_of_a_million_pieces_is_a_row_error_in_bounded_memory(
    tmp_path: Path, ordinary_peak_mb: float, what: str
) -> None:
    """What is small in the input and large in Python: a record takes ten times of the most that it may have."""
    record, message = DENSE[what]
    ended = complete(tmp_path, lines(record()))
    assert ended.exit_code == ExitCode.DONE, ended.log
    first, dense, last = ended.results
    assert first["choices"][0]["text"] == last["choices"][0]["text"] == "good"
    assert message in dense["error"]["message"]
    assert len(dense["error"]["message"]) < 2000
    assert ended.peak_mb - ordinary_peak_mb < READERS * 10 * MAX_RECORD_BYTES / 2**20


JOB_ERRORS: dict[str, tuple[bytes, str]] = {
    "truncated gzip": (gzip.compress(lines(GOOD))[:-12], "is cut: it ends within its gzip data"),
    "gzip with damaged data": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", "damaged gzip data"),
    "gzip in gzip": (gzip.compress(gzip.compress(GOOD)), "is compressed twice"),
    "a cut array": (b"[" + GOOD + b", " + GOOD[:-4], "is cut: it ends at byte"),
    "an array with a broken element": (b"[" + GOOD + b', {"prompt": truth}]', "is not a valid JSON document"),
    "values over several lines": (b'{\n"prompt":\n"a"}\n{\n"prompt":\n"b"}', "several JSON values"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "is text in UTF-16: write it in UTF-8"),
    "a Parquet file": (b"PAR1\x15" + bytes(100), "is a Parquet file"),
    "prompts twice": (b'{"prompts": [], "prompts": [], "max_new_tokens": 1, "temperature": 0}', "has prompts twice"),
    "a parameter twice": (b'{"prompts": [], "temperature": 0, "temperature": 1}', "has temperature twice"),
    "a parameter of NaN": (b'{"prompts": [], "max_new_tokens": 1, "temperature": NaN}', "NaN is not a number"),
    "parameters without end": (
        b'{"prompts": ["a"]' + b"".join(b', "k%d": 1' % number for number in range(10_000)) + b"}",
        "has more than 1000 fields",
    ),
}


@pytest.mark.parametrize("what", JOB_ERRORS)
def test_input_that_can_not_be_read_as_a_whole_is_one_clear_error(tmp_path: Path, what: str) -> None:
    data, message = JOB_ERRORS[what]
    ended = complete(tmp_path, data)
    assert ended.exit_code == ExitCode.BAD_REQUEST, ended.log
    assert re.match(r"\d\d:\d\d:\d\d ERROR   input[: ]", ended.last_line), ended.last_line
    assert message in ended.last_line
    assert len(ended.last_line) < 500
    assert not (tmp_path / "output.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"output_data_path": "\xff"}', "the request is not UTF-8"),
        (b"[" * 10_000, "the request is"),
        (b'{"a":' * 10_000, "the request is"),
        (b'{"max_runtime_sec": NaN}', "NaN is not a JSON number"),
        (b'{"max_runtime_sec": 1e999}', "max_runtime_sec: must be an integer"),
        (b'{"labels": {}, "labels": {}}', "the field labels is given twice"),
        (b'{"gpus": ' + b"9" * 5000 + b"}", "a number has 5000 digits"),
        (
            b'{"gpus": ' + b"9" * 4000 + b', "output_data_path": "o", "model_config": {"model": "m"}}',
            "gpus: is a whole",
        ),
        (b'{"gpus": -' + b"9" * 4000 + b', "output_data_path": "o", "model_config": {"model": "m"}}', "13288 bits"),
        (b"", "the request is not JSON"),
    ],
    ids=range(10),
)
def test_a_request_that_can_not_be_read_is_one_clear_error(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "request.json").write_bytes(text)
    done = subprocess.run(
        [sys.executable, "-m", "airflow_llmengine.worker", "validate", str(tmp_path / "request.json")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == ExitCode.BAD_REQUEST
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "sys." not in done.stderr
    assert max(map(len, done.stderr.splitlines())) < 400
