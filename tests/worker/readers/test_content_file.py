from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator

import pytest

from airflow_llmengine.worker.readers import InputCutError, InputInvalidError
from airflow_llmengine.worker.readers.content_file import read_parameters, read_prompts
from tests.worker.readers.files import AWKWARD_SIZES, endless, outcomes, read_of, values

PARAMETERS = {"max_new_tokens": 7, "temperature": 0.5, "stop_sequences": ["]", '"'], "top_p": None}
PROMPTS = ['a "quoted" ] prompt', "", "{{ 7*7 }}", "😀\u2028"]


def orders() -> list[bytes]:
    """The prompts before, after and between the parameters."""
    before = {"prompts": PROMPTS, **PARAMETERS}
    after = {**PARAMETERS, "prompts": PROMPTS}
    between = {"max_new_tokens": 7, "prompts": PROMPTS, **PARAMETERS}
    return [
        json.dumps(document, indent=indent).encode() for document in (before, after, between) for indent in (None, 1)
    ]


@pytest.mark.parametrize("block", AWKWARD_SIZES)
@pytest.mark.parametrize("document", orders())
def test_parameters_and_prompts_are_read_in_any_order(document: bytes, block: int) -> None:
    content = read_parameters(read_of(document), "x.json", block_bytes=block)
    assert content is not None
    assert content.given() == {**PARAMETERS, "prompts": []}
    assert values(read_prompts(read_of(document), "x.json", block_bytes=block)) == PROMPTS


def test_a_prompt_is_located_by_its_index_from_0() -> None:
    first, second = read_prompts(read_of(b'{"prompts": ["ab", 3]}'), "x.json", 5)
    assert (first.index, first.location, first.value, first.size) == (5, "prompts[0] of x.json", "ab", 4)
    assert (second.index, second.location, second.value) == (6, "prompts[1] of x.json", 3)


def test_a_prompt_that_is_not_taken_is_its_own_fault_alone() -> None:
    document = b'{"prompts": ["a", "\\ud800", "\xff", NaN, "0123456789", "b"], "max_new_tokens": 1, "temperature": 0}'
    assert read_parameters(read_of(document), "x.json") is not None
    assert outcomes(read_prompts(read_of(document), "x.json", limit=10)) == [
        "a",
        "! invalid_unicode",
        "! invalid_unicode",
        "! invalid_json",
        "! record_too_large",
        "b",
    ]


def test_a_document_without_prompts_is_no_content() -> None:
    assert read_parameters(read_of(b'{"prompt": "a", "prompt": "b", "\\ud800": NaN}'), "x.json") is None
    assert read_parameters(read_of(b'{"messages": {"prompts": ["a"]}}'), "x.json") is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"prompts": []}', "x.json: max_new_tokens: is required; temperature: is required"),
        ('{"prompts": [], "max_new_tokens": "secret", "temperature": 3}', "max_new_tokens: must be an integer"),
        ('{"prompts": [], "max_new_tokens": 1, "temperature": 3}', "temperature: must be"),
        ('{"prompts": [], "max_new_tokens": 1, "temperature": 0, "stop_sequence": ["secret"]}', "stop_sequences?"),
        (
            '{"prompts": "secret", "max_new_tokens": 1, "temperature": 0}',
            "prompts that is an array of strings is missing",
        ),
        ('{"prompts": {"a": 1}}', "prompts that is an array of strings is missing at byte 12"),
        ('{"prompts": null}', "prompts that is an array of strings is missing"),
        ('{"prompts": [], "prompts": []}', "x.json has prompts twice"),
        ('{"prompts": [], "top_k": 1, "top\\u005fk": 2}', "x.json has top_k twice"),
        ('{"prompts": [], "temperature": NaN}', "x.json: temperature: NaN is not a number in JSON"),
        ('{"prompts": [], "temperature": nul}', "x.json: temperature: it is not valid JSON"),
        ('{"prompts": [], "\\ud800": 1}', "x.json: a key: a string holds one half of a surrogate pair"),
        ('{"prompts": ["a" "secret"]}', "a comma or ] is missing at byte 17"),
        ('{"prompts": []} {"prompts": []}', "something follows the end of the document at byte 16"),
        ('{"prompts": [], }', "a key in double quotes is missing at byte 16"),
        ('{"prompts" ["a"]}', "a colon is missing at byte 11"),
        ('{"prompts": [] "top_k": 1}', "a comma or } is missing at byte 15"),
        ("{prompts: []}", "a key in double quotes is missing at byte 1"),
        ("{3: []}", "a key in double quotes is missing at byte 1"),
    ],
)
def test_a_content_object_that_is_wrong_is_refused(document: str, message: str) -> None:
    for block in AWKWARD_SIZES:
        with pytest.raises(InputInvalidError) as caught:
            read_parameters(read_of(document.encode()), "x.json", block_bytes=block)
        assert message in str(caught.value)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("document", orders())
def test_a_cut_content_object_is_refused_wherever_it_is_cut(document: bytes) -> None:
    for end in range(1, len(document)):
        with pytest.raises(InputCutError):
            read_parameters(read_of(document[:end]), "x.json")


def test_broken_text_within_a_prompt_is_refused_when_it_is_reached() -> None:
    document = b'{"prompts": ["a", "line\nfeed"], "max_new_tokens": 1, "temperature": 0}'
    with pytest.raises(InputInvalidError, match=r"prompts\[1\] of x\.json, which begins at byte 18: "):
        list(read_prompts(read_of(document), "x.json"))


def test_prompts_of_any_number_take_little_memory() -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"prompts": ["a"'
        for _ in range(20):
            yield b', "some prompt or other"' * 1000
        yield b'], "max_new_tokens": 1, "temperature": 0}'

    tracemalloc.start()
    try:
        content = read_parameters(endless(pieces()), "x.json")
        count = sum(1 for _ in read_prompts(endless(pieces()), "x.json"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert content is not None
    assert count == 20_001
    assert peak < 2 * 2**20
