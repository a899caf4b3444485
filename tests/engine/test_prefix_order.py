"""Records that begin alike meet in the engine's prefix cache, by the engine's own count."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker import look_ahead
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.engines.base import EngineStep, PrefixCache
from airflow_llmengine.worker.engines.vllm import VLLMEngine
from airflow_llmengine.worker.stopping import Stop
from benchmarks.sides import KeptEngine
from tests.engine.conftest import RunningEngine
from tests.engine.records import job

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1200)]

DOCUMENTS, QUESTIONS = 6, 4
BLOCK_TOKENS = 32
DOCUMENT_BLOCKS = 5
CACHE_BLOCKS = 17
"""Three documents, with a block that vLLM keeps for itself."""

SMALL = {
    "max_model_len": BLOCK_TOKENS * (DOCUMENT_BLOCKS + 2),
    "max_num_seqs": 2,
    "num_gpu_blocks_override": CACHE_BLOCKS,
    "block_size": BLOCK_TOKENS,
}


class Unsorted(KeptEngine):
    """Does not say what it caches, so that records come as they stand in the input."""

    def prefix_cache(self) -> PrefixCache | None:
        return None


@pytest.fixture(scope="module")
def small(quickstart_model: Path) -> Iterator[RunningEngine]:
    """An engine whose cache holds fewer documents than there are."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        model = {name: value for name, value in SMALL.items() if name.startswith("max")}
        engine = VLLMEngine(job(quickstart_model, **model))
        engine.take_arguments({name: value for name, value in SMALL.items() if name not in model})
        steps: list[EngineStep] = []
        engine.tell_steps(steps.append)
        try:
            runner.run(engine.start())
            yield RunningEngine(engine, runner, steps)
        finally:
            runner.run(engine.stop())


def write_questions(path: Path) -> None:
    """Every question about every document, in any order."""
    chance = random.Random(5)
    words = ["time", "way", "day", "man", "world", "life", "hand", "part", "child", "eye", "place", "work", "week"]
    # A word is a token, with the space before it.
    documents = [" ".join(chance.choices(words, k=BLOCK_TOKENS * DOCUMENT_BLOCKS)) for _ in range(DOCUMENTS)]
    prompts = [f"{document} {word}?" for document in documents for word in words[:QUESTIONS]]
    chance.shuffle(prompts)
    with path.open("w") as lines:
        for prompt in prompts:
            lines.write(json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0}) + "\n")


def test_an_engine_finds_more_of_records_that_are_sorted(
    small: RunningEngine, quickstart_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small.engine.prefix_cache() == PrefixCache(tokens=CACHE_BLOCKS * BLOCK_TOKENS, block_tokens=BLOCK_TOKENS)
    write_questions(tmp_path / "in.jsonl")
    monkeypatch.setattr("asyncio.run", small.run)
    # A busy machine may need more time to sort than the first records would wait.
    monkeypatch.setattr(look_ahead, "ARRANGE_SECONDS", 60.0)

    def found(engine: KeptEngine, name: str) -> int:
        request = validate_request(
            {
                **job(quickstart_model).given(),
                "input_data_path": str(tmp_path / "in.jsonl"),
                "output_data_path": str(tmp_path / name),
            }
        )
        small.run(engine.begin())
        small.steps.clear()
        options = AttemptOptions(owner="t", series="a")
        outcome = run_attempt(Storage(), request, options, Stop(), make_engine=lambda _request: engine)
        assert outcome.exit_code is ExitCode.DONE, outcome.message
        assert sum(step.finished for step in small.steps) == DOCUMENTS * QUESTIONS
        return sum(step.cached_tokens for step in small.steps)

    in_order = found(KeptEngine(small.engine), "sorted.jsonl")
    # All but the first question about a document find it.
    assert in_order == DOCUMENTS * (QUESTIONS - 1) * DOCUMENT_BLOCKS * BLOCK_TOKENS
    assert found(Unsorted(small.engine), "unsorted.jsonl") < in_order / 2
    texts = [
        [json.loads(line)["choices"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("sorted.jsonl", "unsorted.jsonl")
    ]
    assert texts[0] == texts[1]
