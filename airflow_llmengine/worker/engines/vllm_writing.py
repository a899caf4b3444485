"""V1 records that vLLM writes in several goes, each from the ids of the tokens so far. Needs no vLLM.

Ids keep what was written exactly as it was, token for token, and vLLM finds all of it in its prefix cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import CompletionOutput, RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm_records import completion_request, v1_answer
from airflow_llmengine.worker.engines.writing import Written
from airflow_llmengine.worker.records import PromptRecord, Record


class VLLMWriter:
    """See ``Writer``.

    Args:
        answer: From the body of a completion request to the response object, dumped without nulls.
        tokenizer: vLLM's.
        context_length: The engine's ``max_model_len``.
        model: The model's served name.
        known: The fields that vLLM's completion request has.
    """

    def __init__(
        self,
        *,
        answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
        tokenizer: Any,
        context_length: int,
        model: str,
        known: Collection[str],
    ) -> None:
        self._answer = answer
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._model = model
        self._known = known

    @property
    def context_length(self) -> int:
        """See ``Writer``."""
        return self._context_length

    async def write(
        self, record: Record, before: Sequence[int], *, completed: Sequence[int], stop: str, max_tokens: int
    ) -> Written:
        """See ``Writer``."""
        request = record.request
        if not isinstance(request, PromptRecord):
            raise RecordRejectedError(RecordErrorType.UNSUPPORTED, "only V1 records are written in several goes")
        body = completion_request(request, self._model, self._known)
        body |= {
            "stop": [stop, *(request.content.stop_sequences or ())],
            "max_tokens": max_tokens,
            "return_token_ids": True,
        }
        if before:
            body["prompt"] = list(before)
        if completed and (bias := penalties(request.content, completed)):
            body["logit_bias"] = bias
        response = await self._answer(body)
        with_tokens = bool(request.content.return_token_log_probs)
        output = CompletionOutput.model_validate(v1_answer(response, with_tokens=with_tokens).body)
        choice = response["choices"][0]
        reason = choice.get("stop_reason")
        return Written(
            before=tuple(choice["prompt_token_ids"]),
            text=output.text,
            ids=tuple(choice["token_ids"]),
            tokens=None if output.tokens is None else tuple(output.tokens),
            stop=reason if isinstance(reason, str) else None,
        )

    def encode(self, text: str, *, after: str) -> list[int]:
        """See ``Writer``."""
        start = self._ids(after)
        whole = self._ids(after + text)
        if whole[: len(start)] == start:
            return whole[len(start) :]
        # Characters of both would go into one token, and what is there already stays as it is.
        return self._ids(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """See ``Writer``."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def penalties(content: CreateBatchCompletionsV1RequestContent, completed: Sequence[int]) -> Mapping[str, float]:
    """The presence and frequency penalties of the tokens that a completion has already, as a ``logit_bias``.

    vLLM sees them as part of the prompt, and counts only what it generates itself. A token that stands there and comes
    again in the same go gets the presence penalty twice.
    """
    presence, frequency = content.presence_penalty or 0.0, content.frequency_penalty or 0.0
    if not presence and not frequency:
        return {}
    return {str(token): -(presence + frequency * count) for token, count in Counter(completed).items()}
