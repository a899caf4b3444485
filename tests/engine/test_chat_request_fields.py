"""The fields of a chat record beside those of the APIs: a new one of OpenAI's or vLLM's turns a test red, by name."""

from __future__ import annotations

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

OF_A_SERVER = {
    "cache_salt": "keeps users of one server apart",
    "ec_transfer_params": "moves caches between servers",
    "kv_transfer_params": "moves caches between servers",
    "priority": "a job's records are done in the order of the input",
    "request_id": "the result's id is made of the job",
    "session_id": "of a server's sessions",
    "stream_interval": "of a stream",
    "vllm_xargs": "of what is built into vLLM besides",
}
OF_THE_RENDERING_ENDPOINTS = {"mm_payload", "return_mm_kwargs", "return_token_offsets"}
OTHERWISE = {
    "structured_outputs": "guided_json, guided_regex, guided_choice, guided_grammar",
    "return_prompt_text": "return_token_ids",
    "return_tokens_as_token_ids": "return_token_ids",
    "logprob_token_ids": "top_logprobs",
}
NOT_YET = {"repetition_detection", "routed_experts_prompt_start", "watermarking"}
"""An unknown field to the worker, as all of these."""

OURS_ALONE = {
    "best_of",
    "early_stopping",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "metadata",
}
"""Fields that the wire contract has, or that are served without vLLM."""


def test_every_field_of_openais_chat_request_is_known() -> None:
    from openai.types.chat import completion_create_params

    theirs = {
        name
        for kind in (
            completion_create_params.CompletionCreateParamsBase,
            completion_create_params.CompletionCreateParamsNonStreaming,
        )
        for name in kind.__annotations__
    }
    assert sorted(theirs - ChatCompletionV2Request.model_fields.keys()) == []


def test_every_field_of_vllms_chat_request_is_known_or_left_out_for_a_reason() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    from airflow_llmengine.spec.check_chat import UNSERVED

    theirs, ours = ChatCompletionRequest.model_fields.keys(), ChatCompletionV2Request.model_fields.keys()
    left_out = {*OF_A_SERVER, *OF_THE_RENDERING_ENDPOINTS, *OTHERWISE, *NOT_YET}
    assert sorted(theirs - ours) == sorted(left_out)
    assert sorted(ours - theirs) == sorted({*OURS_ALONE, *UNSERVED})
