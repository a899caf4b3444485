"""More answers than a record asks for, of which the best are kept: ``best_of``, and beam search. Needs no vLLM.

vLLM ranks only in beam search, by its own score, and takes the width of the search from ``n``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError


@dataclass(frozen=True, slots=True)
class EngineSampling:
    """What the engine's settings say about sampling."""

    temperature: float
    """Of a record that gives none: the model's own generation config's, or the API's default."""
    max_logprobs: int
    """The most log probabilities for one token."""
    gives_log_probabilities: bool
    """Whether they are log probabilities at all; ``logprobs_mode`` may make logits of them."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """How many answers are generated for each prompt, and how many of them are kept."""

    generated: int
    kept: int
    by_beam_search: bool
    log_probs: int | bool | None
    """What the record itself says of ``logprobs``."""

    @classmethod
    def of(cls, request: CompletionV2Request | ChatCompletionV2Request, engine: EngineSampling) -> Candidates | None:
        """What a record asks for; None if it keeps all that is generated, just as vLLM gives it.

        ``best_of`` at a temperature of 0 generates one answer, since all would be the same.

        Raises:
            RecordRejectedError: The engine's settings don't allow it.
        """
        n = request.effective("n")
        best_of = request.best_of if request.is_given("best_of") else None
        generated = n if best_of is None else max(n, best_of)
        by_beam_search = bool(request.use_beam_search)
        if by_beam_search:
            if engine.max_logprobs < 2 * generated:
                raise RecordRejectedError(
                    RecordErrorType.UNSUPPORTED,
                    f"use_beam_search: a width of {generated} needs twice as many log probabilities of each token, and "
                    f"the engine gives {engine.max_logprobs}: give less in n or best_of, or {2 * generated} as "
                    "max_logprobs in engine_args",
                )
        elif generated == n or (n == 1 and _is_greedy(request, engine)) or _generates_nothing(request):
            return None
        if not engine.gives_log_probabilities:
            field = "use_beam_search" if by_beam_search else "best_of"
            raise RecordRejectedError(
                RecordErrorType.UNSUPPORTED,
                f"{field}: needs log probabilities, and the logprobs_mode in engine_args gives logits; leave one out",
            )
        return cls(generated, n, by_beam_search, request.logprobs)

    def asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The API's request for all candidates.

        Args:
            body: The request for what the record asks.
        """
        if self.by_beam_search:
            # At any other temperature vLLM would add a token at random to those that it goes on with.
            return {**body, "n": self.generated, "temperature": 0}
        widened = {**body, "n": self.generated}
        if not body.get("logprobs") and not body.get("top_logprobs"):
            # Those of the chosen tokens are enough. ``top_logprobs`` alone is for vLLM to refuse.
            widened["logprobs"] = True if "messages" in body else 0
        return widened

    def keep(self, response: dict[str, Any]) -> None:
        """Take the answers that are not among the best out of a response, and what was asked for only to rank them.

        The token counts stay: they are of all that was generated.

        Args:
            response: The API's response object, dumped without nulls; changed in place.
        """
        choices = response["choices"]
        kept = []
        for start in range(0, len(choices), self.generated):
            candidates = choices[start : start + self.generated]
            if not self.by_beam_search:
                candidates.sort(key=_mean_log_prob, reverse=True)
            kept += candidates[: self.kept]
        for index, choice in enumerate(kept):
            choice["index"] = index
            if self.log_probs is None or self.log_probs is False:
                choice.pop("logprobs", None)
            elif self.by_beam_search:
                _list_chosen(choice["logprobs"], self.log_probs)
        response["choices"] = kept


def _is_greedy(request: CompletionV2Request | ChatCompletionV2Request, engine: EngineSampling) -> bool:
    temperature = request.temperature if request.is_given("temperature") else engine.temperature
    # At any other one, however small, vLLM samples at 0.01.
    return temperature == 0


def _generates_nothing(request: CompletionV2Request | ChatCompletionV2Request) -> bool:
    """Whether it asks for its prompt alone."""
    return request.max_tokens == 0


def _mean_log_prob(choice: Mapping[str, Any]) -> float:
    """The mean log probability of the generated tokens; what has none, or one that is no number, ranks last."""
    log_probs = choice["logprobs"]
    if "content" in log_probs:
        generated = [token["logprob"] for token in log_probs["content"]]
    else:
        # With ``echo`` those of the prompt come first.
        generated = log_probs["token_logprobs"][len(choice.get("prompt_logprobs", ())) :]
    mean = sum(generated) / len(generated) if generated else -math.inf
    return -math.inf if math.isnan(mean) else mean


def _list_chosen(log_probs: dict[str, Any], count: int) -> None:
    """List as many of the likeliest tokens as asked for, and the chosen one, as without beam search.

    vLLM lists one too many, and not the chosen one if that is not among them.
    """
    if "top_logprobs" in log_probs:
        log_probs["top_logprobs"] = [
            {**dict(islice(likeliest.items(), count)), token: log_prob}
            for token, log_prob, likeliest in zip(
                log_probs["tokens"], log_probs["token_logprobs"], log_probs["top_logprobs"], strict=True
            )
        ]
