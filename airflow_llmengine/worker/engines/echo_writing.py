"""The stand-in engine's answers in several goes: the prompt is what a model would write."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Sequence

from airflow_llmengine.spec.results import RecordErrorType, TokenOutput
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.writing import Written
from airflow_llmengine.worker.records import PromptRecord, Record


class EchoWriter:
    """See ``Writer``. A token's id is its text as a number, so that it means the same to every engine.

    Args:
        work: Does what the engine does for each record. It is told whether this is the record's first go.
    """

    context_length = sys.maxsize

    def __init__(self, work: Callable[[Record, bool], Awaitable[None]]) -> None:
        self._work = work

    async def write(
        self, record: Record, before: Sequence[int], *, completed: Sequence[int], stop: str, max_tokens: int
    ) -> Written:
        """See ``Writer``. It goes on after as many stop sequences as the completion has already."""
        request = record.request
        if not isinstance(request, PromptRecord):
            raise RecordRejectedError(RecordErrorType.UNSUPPORTED, "only V1 records are written in several goes")
        await self._work(record, not before)
        passed = self.decode(completed, skip_special_tokens=False).count(stop)
        text = stop.join(request.prompt.split(stop)[passed:])
        stops = [one for one in (stop, *(request.content.stop_sequences or ())) if one and one in text]
        ended_by = min(stops, key=lambda one: text.find(one) + len(one), default=None)
        generated = pieces(text if ended_by is None else text[: text.find(ended_by) + len(ended_by)])
        if len(generated) > max_tokens:
            generated, ended_by = generated[:max_tokens], None
        return Written(
            before=tuple(before) or tuple(map(_to_id, pieces(request.prompt))),
            text="".join(generated).removesuffix(ended_by or ""),
            ids=tuple(map(_to_id, generated)),
            tokens=tuple(TokenOutput(token=piece, log_prob=0.0) for piece in generated)
            if request.content.return_token_log_probs
            else None,
            stop=ended_by,
        )

    def encode(self, text: str, *, after: str) -> list[int]:
        """See ``Writer``."""
        return [_to_id(piece) for piece in pieces(text)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """See ``Writer``."""
        return "".join(map(_to_piece, ids))


def pieces(text: str) -> list[str]:
    """One piece for each word, with the white space around it; together they are the text."""
    return re.findall(r"\s*\S+(?:\s+$)?|\s+", text)


def _to_id(piece: str) -> int:
    return int.from_bytes(b"\x01" + piece.encode(), "big")


def _to_piece(number: int) -> str:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")[1:].decode()
