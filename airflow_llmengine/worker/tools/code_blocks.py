"""Where a block of code stands in what a model wrote, and how what it printed is put in. See ``code_block_form``."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmengine.spec.code_block_form import CLOSING, MARKER, OPENING


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block that is whole."""

    code: str
    end: int
    """Where the text after its closing fence begins: what the model made up as its output."""


def last_block(text: str) -> CodeBlock | None:
    """Find the last whole block: a block that was begun and not ended is none, nor does it hide an earlier one.

    Args:
        text: What was generated since the last round, with the marker that ended it.
    """
    opening = text.rfind(OPENING)
    while opening >= 0:
        start = opening + len(OPENING)
        # Without any code the two fences share a line break.
        closing = text.find(CLOSING, start - 1)
        if closing >= 0:
            return CodeBlock(code=text[start:closing], end=closing + len(CLOSING))
        opening = text.rfind(OPENING, 0, opening)
    return None


def shown_output(printed: str) -> str:
    """The text that takes the place of an output, with the marker. The marker begins with the last line's break."""
    return printed.removesuffix("\n") + MARKER
