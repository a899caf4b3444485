"""What the benchmarks of the engine complete: four kinds of work, the same words in every run.

A workload is written once, as two files: JSON lines of prompts, and an OpenAI batch file of the same texts as chats,
which is what ``vllm run-batch`` reads. Every side reads one of the two.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL_NAME = "benchmark"
"""What requests call the model."""

BLOCK_TOKENS = 32
"""Tokens of a block of the KV cache: on a processor vLLM takes multiples of 32 only."""

DOCUMENTS_CACHE_TOKENS = 256
"""Size of the KV cache under the documents, at scale 1."""

DOCUMENT_TOKENS = 64
"""Length of a document, roughly: so many words that most tokenizers know whole."""

QUESTIONS = (
    "What is it about?",
    "Who is it for?",
    "Is it of any use?",
    "Which word is the oddest?",
    "What is missing?",
    "When was it written?",
    "How does it end?",
    "Would you read it again?",
)

TOPICS = ("bread", "rain", "a lighthouse", "trains", "the Moon", "chess", "a river", "old maps", "bees", "glass")

WORDS = """
    time way day man world life hand part child eye place work week case point company number group problem fact water
    room money story month book job word business issue side kind head house service friend father power hour game line
    end member law car city name team minute idea body back parent face level office door health person art war
"""


@dataclass(frozen=True, slots=True)
class Item:
    """One record: a text, and how many tokens are written for it, which is exact: nothing ends an answer earlier."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Records, and the engine's settings that they are completed with."""

    name: str
    title: str
    items: Sequence[Item]
    settings: Mapping[str, Any]
    """What differs from the settings that all workloads share; the same on every side."""

    @property
    def unique_share(self) -> float:
        """Which part of the records differs from all before it."""
        return len(set(self.items)) / len(self.items)

    def write(self, folder: Path) -> dict[str, Path]:
        """Write both files, and return them by form: ``prompts`` and ``chats``."""
        files = {form: folder / f"{self.name}.{form}.jsonl" for form in ("prompts", "chats")}
        with files["prompts"].open("w") as prompts, files["chats"].open("w") as chats:
            for index, item in enumerate(self.items):
                fields = {"max_tokens": item.max_tokens, "temperature": 0.0, "ignore_eos": True}
                body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": item.text}], **fields}
                line = {"custom_id": f"r{index}", "method": "POST", "url": "/v1/chat/completions", "body": body}
                prompts.write(json.dumps({"prompt": item.text, **fields}) + "\n")
                chats.write(json.dumps(line) + "\n")
        return files


def short_answers(scale: float) -> Workload:
    """Short answers to short prompts: so many that it matters little that an engine's first step runs almost empty."""
    items = [Item(_prompt(index), 8) for index in range(_count(288, scale))]
    return Workload("short", "short answers", items, {})


def varied_answers(scale: float) -> Workload:
    """Answers of very different lengths: most are short, a few take ten times as long."""
    chance = random.Random(1)
    lengths = [round(math.exp(chance.gauss(2.2, 1.0))) for _ in range(_count(192, scale))]
    items = [Item(_prompt(index), min(max(length, 1), 96)) for index, length in enumerate(lengths)]
    return Workload("varied", "answers of very different lengths", items, {})


def documents(scale: float) -> Workload:
    """Many documents with eight questions each, shuffled; the documents are four times the KV cache, and some more."""
    # A document with its question, as a chat, takes four at most.
    blocks = max(4, _count(DOCUMENTS_CACHE_TOKENS // BLOCK_TOKENS, scale))
    count = math.ceil(4 * blocks * BLOCK_TOKENS / DOCUMENT_TOKENS)
    chance = random.Random(2)
    items = []
    for number in range(count):
        words = " ".join(chance.choices(WORDS.split(), k=DOCUMENT_TOKENS))
        items += [Item(f"{number}: {words}.\n{question}", 2) for question in QUESTIONS]
    chance.shuffle(items)
    # One block of the KV cache is vLLM's own.
    settings = {
        "max_num_seqs": _count(8, scale),
        "max_model_len": min(192, blocks * BLOCK_TOKENS),
        "num_gpu_blocks_override": blocks + 1,
    }
    return Workload("documents", "documents, eight questions each", items, settings)


def duplicates(scale: float) -> Workload:
    """40 % of the records are the same as another one, letter for letter; shuffled."""
    count = _count(100, scale)
    unique = [Item(_prompt(index), 8) for index in range(round(0.6 * count))]
    chance = random.Random(3)
    items = unique + chance.choices(unique, k=count - len(unique))
    chance.shuffle(items)
    return Workload("duplicates", "40 % duplicates", items, {})


WORKLOADS: Mapping[str, Callable[[float], Workload]] = {
    "short": short_answers,
    "varied": varied_answers,
    "duplicates": duplicates,
    "documents": documents,
}
"""By name, in an order in which those with the same settings follow one another."""


def read_texts(path: Path) -> list[tuple[Any, int]]:
    """The prompts, or the chats' messages, of a file that ``Workload.write`` wrote, each with its ``max_tokens``."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    bodies = [record.get("body", record) for record in records]
    return [(body.get("messages", body.get("prompt")), body["max_tokens"]) for body in bodies]


def _prompt(index: int) -> str:
    first, second = TOPICS[index % len(TOPICS)], TOPICS[index // len(TOPICS) % len(TOPICS)]
    return f"{index}. Write a short text about {first}" + f" and {second}" * (index % 4) + ". It begins so:"


def _count(number: int, scale: float) -> int:
    return max(2, round(number * scale))
