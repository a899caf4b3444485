"""What the worker writes is what vLLM's own server answers: same model, same settings, same records.

Texts, counts, reasons and log probabilities are compared, and with them all else that the responses hold, except:

- ``id``, ``created`` and ``system_fingerprint``: no two runs have them in common, and the worker's are the job's;
- ``metadata``, by which the worker gives ``user`` back;
- nulls: the worker leaves out those of fields that only vLLM has;
- ``prompt_logprobs`` that no record asked for: vLLM adds them wherever there is ``echo``;
- the ids of tool calls, which vLLM draws at random, and the worker makes of the record's place.

Two runs don't batch the same sequences together, and a product of other matrices is rounded otherwise. In 32 bits that
moves a log probability by far less than ``NUMERICS``, and turns a choice only where two tokens are as near as that. No
choice of these records is: another seed may have one, and would then be a seed to leave alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.readers import open_input
from airflow_llmengine.worker.readers.validate import to_record
from airflow_llmengine.worker.records import RawRecord
from tests.engine.api_server import ApiServer
from tests.engine.conftest import RunningEngine
from tests.engine.records import MAX_MODEL_LEN, job
from tests.engine.varied_records import (
    COMPLETIONS,
    REFUSED,
    SPECIAL,
    Generator,
    Json,
    api_request,
    api_requests_of_content,
)

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1500)]

NUMERICS = 1e-3

SERVER = (
    *("--served-model-name=small", "--dtype=float32", "--enforce-eager"),
    *(f"--max-model-len={MAX_MODEL_LEN}", "--max-num-seqs=32"),
    *("--enable-auto-tool-choice", "--tool-call-parser=hermes", "--trust-request-chat-template"),
)
"""The settings of ``records.job``, and those that the shared engine has besides."""

TOOLS = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
ENGINE_ARGS = {"trust_request_chat_template": True}

OPINIONATED = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.15,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.1,
    "max_new_tokens": 9,
    "eos_token_id": [2, 30],
}
"""A generation config with an opinion of all that vLLM takes from one; 30 is the token of a full stop."""

NOT_COMPARED = frozenset(
    {
        ".id",
        ".created",
        ".system_fingerprint",
        ".metadata",
        ".choices[].prompt_logprobs",
        ".choices[].message.tool_calls[].id",
    }
)
"""Places in a response, without the numbers of elements."""

UNASKED = frozenset({".prompt_logprobs"})
"""Places that are not compared either where the record has no field of that name."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One record, and its two answers."""

    record: Json
    ours: Json
    """The element of the output."""
    status: int
    servers: Json
    """The body of the response."""


@dataclass(frozen=True, slots=True)
class Run:
    """One model's answers."""

    completions: list[Pair]
    """Of V1."""
    records: list[Pair]
    """Of V2, the refused ones last."""


Answering = Callable[[str], list[Json]]
"""From what an input file holds to the elements of the output."""


def both(model: Path, contents: list[Json], records: list[Json], answering: Answering) -> Run:
    """Let both answer."""
    # One after the other: each engine takes gigabytes.
    v1 = [element for content in contents for element in answering(json.dumps(content))]
    v2 = answering("".join(json.dumps(record) + "\n" for record in records))
    bodies = [body for content in contents for body in api_requests_of_content(content)]
    with tempfile.TemporaryDirectory() as folder:
        server = ApiServer(model, Path(folder), *SERVER)
        try:
            servers_v1 = server.answers([(COMPLETIONS, body) for body in bodies])
            servers_v2 = server.answers([api_request(record) for record in records])
        finally:
            server.end()
    return Run(
        [Pair(body, ours, *theirs) for body, ours, theirs in zip(bodies, v1, servers_v1, strict=True)],
        [Pair(record, ours, *theirs) for record, ours, theirs in zip(records, v2, servers_v2, strict=True)],
    )


@pytest.fixture(scope="module")
def plain(running: RunningEngine, quickstart_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The quickstart's model, and all decoding greedy. The worker's parts are those that the shared engine leaves."""

    def answering(text: str) -> list[Json]:
        path = tmp_path_factory.mktemp("plain") / "input"
        path.write_text(text)
        request = job(quickstart_model).model_copy(update={"input_data_path": str(path)})
        return elements(running, request)

    generator = Generator(1, greedy=True)
    return both(quickstart_model, generator.contents(4, 8), [*generator.records(92, 54), *SPECIAL, *REFUSED], answering)


@pytest.fixture(scope="module")
def opinionated(quickstart_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same weights with a generation config that has an opinion, and whole jobs of the command line."""
    model = tmp_path_factory.mktemp("opinionated")
    for path in quickstart_model.iterdir():
        if path.name == "generation_config.json":
            (model / path.name).write_text(json.dumps({**json.loads(path.read_text()), **OPINIONATED}))
        else:
            (model / path.name).symlink_to(path)

    def answering(text: str) -> list[Json]:
        return output(tmp_path_factory.mktemp("job"), job(model, **TOOLS), text)

    generator = Generator(2, greedy=False)
    return both(model, generator.contents(1, 30), [*generator.records(92, 54), *SPECIAL, *REFUSED], answering)


def elements(running: RunningEngine, request: CreateBatchCompletionsV1Request) -> list[Json]:
    """What the worker makes of a job's input, by its parts around the engine."""
    reader = open_input(Storage(), request)
    writer = ElementWriter(JobHandle(path="", fingerprint="0" * 64, generation=1), created=0)

    async def element(raw: RawRecord) -> Json:
        record = to_record(raw, request, reader.content)
        if isinstance(record, RecordError):
            return record.wire()
        try:
            answer = await running.engine.complete(record)
        except RecordRejectedError as error:
            return RecordError(type=error.error_type, message=error.message, index=raw.index).wire()
        done: Json = json.loads(writer.answer(record, answer).element)
        return done

    async def all_of_them() -> list[Json]:
        return await asyncio.gather(*map(element, reader.records()))

    made: list[Json] = running.run(all_of_them())
    return made


def output(folder: Path, request: CreateBatchCompletionsV1Request, text: str) -> list[Json]:
    """What ``llmengine-batch run`` writes."""
    (folder / "input").write_text(text)
    given = {**request.given(), "input_data_path": str(folder / "input"), "output_data_path": str(folder / "output")}
    (folder / "request").write_text(json.dumps(given))
    worker = subprocess.run(
        [
            *(sys.executable, "-m", "airflow_llmengine.worker", "run", str(folder / "request")),
            *("--engine-args", json.dumps(ENGINE_ARGS)),
        ],
        env={**os.environ, "LLMENGINE_ENGINE": "vllm", "VLLM_CPU_KVCACHE_SPACE": "1"},
        capture_output=True,
        text=True,
    )
    assert worker.returncode == ExitCode.DONE, worker.stderr[-4000:]
    written: list[Json] = json.loads((folder / "output").read_text())
    return written


def differences(ours: Any, servers: Any, place: str = "", not_compared: frozenset[str] = NOT_COMPARED) -> Iterator[str]:
    """Where two answers differ, apart from nulls and from what is not compared."""
    if isinstance(ours, dict) and isinstance(servers, dict):
        for name in sorted(ours.keys() | servers.keys()):
            if re.sub(r"\d", "", f"{place}.{name}") not in not_compared:
                yield from differences(ours.get(name), servers.get(name), f"{place}.{name}", not_compared)
    elif isinstance(ours, list) and isinstance(servers, list) and len(ours) == len(servers):
        for index, (one, other) in enumerate(zip(ours, servers, strict=True)):
            yield from differences(one, other, f"{place}[{index}]", not_compared)
    elif isinstance(ours, float) and isinstance(servers, float):
        if abs(ours - servers) > NUMERICS:
            yield f"{place}: {ours} and {servers}"
    elif ours != servers:
        yield f"{place}: {ours!r} and {servers!r}"


def differences_of(pair: Pair) -> Iterator[str]:
    """Where the two answers to a V2 record differ."""
    unasked = {place for place in UNASKED if place.removeprefix(".") not in pair.record}
    yield from differences(pair.ours, pair.servers, not_compared=NOT_COMPARED | unasked)


def as_v1(response: Json, *, with_tokens: bool) -> Json:
    """A completion response as a V1 result."""
    (choice,) = response["choices"]
    logprobs = choice["logprobs"]
    tokens = [
        {"token": token, "log_prob": log_prob}
        for token, log_prob in (zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True) if logprobs else ())
    ]
    usage = response["usage"]
    return {
        "text": choice["text"],
        "num_prompt_tokens": usage["prompt_tokens"],
        "num_completion_tokens": usage["completion_tokens"],
        "tokens": tokens if with_tokens else None,
    }


@pytest.fixture(params=["plain", "opinionated"])
def run(request: pytest.FixtureRequest) -> Run:
    made: Run = request.getfixturevalue(request.param)
    return made


def test_v1_results_are_the_servers(run: Run) -> None:
    assert len(run.completions) >= 30
    assert {pair.status for pair in run.completions} == {200}
    found = [
        (pair.record, difference)
        for pair in run.completions
        for difference in differences(pair.ours, as_v1(pair.servers, with_tokens="logprobs" in pair.record))
    ]
    assert found == []


def test_v2_results_are_the_servers(run: Run) -> None:
    answered = run.records[: -len(REFUSED)]
    assert len(answered) == 159
    assert [(pair.record, pair.servers) for pair in answered if pair.status != 200] == []
    assert [(pair.record, pair.ours["error"]) for pair in answered if "error" in pair.ours] == []
    found = [(pair.record, difference) for pair in answered for difference in differences_of(pair)]
    assert found == []


def test_what_the_server_refuses_is_a_row_error(run: Run) -> None:
    refused = run.records[-len(REFUSED) :]
    assert {pair.status for pair in refused} == {400}
    types = [pair.ours["error"]["type"] for pair in refused]
    long = RecordErrorType.CONTEXT_LENGTH_EXCEEDED
    assert types[:2] == [long, long]
    assert set(types[2:]) <= {RecordErrorType.REJECTED_BY_ENGINE, RecordErrorType.INVALID_RECORD}


def test_the_generation_config_shows(opinionated: Run) -> None:
    """Its own end of a sequence, and its most tokens, are in the answers; so what is equal above has come from it."""
    answered = opinionated.records[: -len(REFUSED)]
    assert any(choice.get("stop_reason") == 30 for pair in answered for choice in pair.ours["choices"])
    unbounded = [
        pair.ours["usage"]["completion_tokens"] / pair.record.get("n", 1)
        for pair in answered
        if "messages" in pair.record and not {"max_tokens", "max_completion_tokens"} & pair.record.keys()
    ]
    assert max(unbounded) == OPINIONATED["max_new_tokens"]
