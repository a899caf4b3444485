"""Where a text may be cut between its tokens, which need not end with characters."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_llmengine.worker.tools.token_boundaries import text_before, tokens_before


class Pieces:
    """Tokens that are any bytes of a text. A token's id is its place; some make no text, as special ones."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.ids = list(range(len(pieces)))
        self.text = self.decode(self.ids)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[one] for one in ids).decode("utf-8", "replace")


@st.composite
def cut_texts(draw: st.DrawFn) -> Pieces:
    data = draw(st.text(alphabet="ab\n`é漢🙂", max_size=30)).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=30)))
    return Pieces([data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)])


@given(cut_texts(), st.integers(0, 40))
@example(Pieces(["é".encode()[:1], "é".encode()[1:] + b"a", b"", b"b"]), 2)
def test_as_many_tokens_are_kept_as_lie_wholly_before_the_place(pieces: Pieces, end: int) -> None:
    end = min(end, len(pieces.text))
    whole = [
        count
        for count in range(len(pieces.ids) + 1)
        if pieces.text[:end].startswith(text := pieces.decode(pieces.ids[:count])) and "\ufffd" not in text
    ]
    best = max(len(pieces.decode(pieces.ids[:count])) for count in whole)
    fewest = min(count for count in whole if len(pieces.decode(pieces.ids[:count])) == best)
    assert tokens_before(pieces.decode, pieces.ids, pieces.text, end) == (fewest, best)


@given(cut_texts(), st.integers(0, 40))
def test_the_text_of_the_first_tokens_has_no_half_characters(pieces: Pieces, count: int) -> None:
    count = min(count, len(pieces.ids))
    text = text_before(pieces.decode, pieces.ids, count, pieces.text)
    assert pieces.text.startswith(text)
    left = len(b"".join(pieces.pieces[:count])) - len(text.encode())
    assert 0 <= left < 4


def test_a_first_space_that_decoding_drops_is_counted() -> None:
    words = [" one", " two", " three"]

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[one] for one in ids).removeprefix(" ")

    assert tokens_before(decode, [0, 1, 2], " one two three", 9) == (2, 8)
    assert text_before(decode, [0, 1, 2], 2, " one two three") == " one two"


def test_tokens_that_decode_to_another_text_are_not_kept() -> None:
    words = ["x", " .", "\n"]

    def tidying(ids: Sequence[int]) -> str:
        return "".join(words[one] for one in ids).replace(" .", ".")

    assert tokens_before(tidying, [0, 1, 2], "x .\n", 4) == (1, 1)
    assert text_before(tidying, [0, 1, 2], 2, "x .\n") == "x."
