"""How texts that stand after others become tokens for vLLM, with tokenizers of the two common kinds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from airflow_llmengine.worker.engines.vllm_writing import VLLMWriter, penalties
from tests.worker.tools.authors import v1

SAMPLE = ["```python\nprint(6 * 7)\n```\n42\n>>>\nAnswer: 42\n\n", "def twice(x):\n    return 2 * x\n\n\n\n"] * 20


class OfTransformers:
    """The part of a tokenizer of transformers that is used."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text


def byte_level() -> OfTransformers:
    """As GPT-2 and Llama 3 have it: line breaks that follow one another are one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        SAMPLE, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    )
    return OfTransformers(tokenizer)


def sentence_piece() -> OfTransformers:
    """As Llama 2 has it: each text that is encoded gets a space in front, and the first one decoded loses it."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127)), "▁4", "42"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: place for place, piece in enumerate(pieces)},
            merges=[("▁", "4"), ("4", "2")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return OfTransformers(tokenizer)


def writer(tokenizer: Any, answer: Any = None) -> VLLMWriter:
    known = {"prompt", "max_tokens", "temperature", "presence_penalty", "frequency_penalty", "stop"}
    return VLLMWriter(answer=answer, tokenizer=tokenizer, context_length=100, model="small", known=known)


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
@pytest.mark.parametrize("after", ["```python\nprint(6)\n```\n", "```\n", "x"])
@pytest.mark.parametrize("text", ["42\n>>>\n", "\n>>>\n", "\n\n\n>>>\n", " 4\n>>>\n", "é漢🙂\n>>>\n", "x\n>>>\n"])
def test_a_text_that_stands_after_another_reads_back_as_it_is(make: Any, after: str, text: str) -> None:
    tokenizer = make()
    one = writer(tokenizer)
    before = tokenizer.encode(after, add_special_tokens=False)
    whole = one.decode([*before, *one.encode(text, after=after)], skip_special_tokens=False)
    assert whole == after + text


def test_tokens_that_a_completion_has_already_are_as_dear_as_the_penalties_make_them() -> None:
    content = v1(presence_penalty=0.5, frequency_penalty=0.25).request.content  # type: ignore[union-attr]
    assert penalties(content, [7, 9, 7]) == {"7": -1.0, "9": -0.75}
    assert penalties(v1(presence_penalty=0).request.content, [7]) == {}  # type: ignore[union-attr]


def test_a_later_go_is_asked_for_by_ids_with_the_marker_first_and_the_penalties_of_what_is_there() -> None:
    asked: list[dict[str, Any]] = []

    async def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        choice = {"text": "hi", "prompt_token_ids": [1, 2], "token_ids": [3], "stop_reason": 5}
        return {"choices": [choice], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}

    one, record = writer(None, answer), v1("Q", stop_sequences=["END"], frequency_penalty=2)
    first = asyncio.run(one.write(record, (), completed=(), stop="\n>>>\n", max_tokens=9))
    later = asyncio.run(one.write(record, (1, 2, 3), completed=(3,), stop="\n>>>\n", max_tokens=8))
    assert (first.before, first.ids, first.text, first.stop, later.tokens) == ((1, 2), (3,), "hi", None, None)
    common = {"model": "small", "stop": ["\n>>>\n", "END"], "return_token_ids": True, "frequency_penalty": 2.0}
    assert asked == [
        {**common, "prompt": "Q", "temperature": 0.0, "max_tokens": 9},
        {**common, "prompt": [1, 2, 3], "temperature": 0.0, "max_tokens": 8, "logit_bias": {"3": -2.0}},
    ]
