"""Which test turns which field on the real engine: a field of a model that has none is told by its name.

This file needs no engine: it reads the tests.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_chat import UNSERVED
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.sampling import SamplingFields

TESTS = Path(__file__).parents[1]

V1_CONTENT = {
    "frequency_penalty": "engine/test_v1.py::test_a_penalty_makes_repetition_rarer",
    "max_new_tokens": "engine/test_v1.py::test_counts_are_given_apart_from_the_body",
    "presence_penalty": "engine/test_v1.py::test_a_penalty_makes_repetition_rarer",
    "prompts": "engine/test_v1.py::test_each_of_the_prompts_has_its_own_answer",
    "return_token_log_probs": "engine/test_v1.py::test_every_generated_token_has_its_log_probability_in_order",
    "skip_special_tokens": "engine/test_v1.py::test_special_tokens_are_shown_on_request",
    "stop_sequences": "engine/test_v1.py::test_generation_ends_at_a_stop_sequence_whose_tokens_are_still_listed",
    "temperature": "engine/test_v1.py::test_temperature_makes_answers_differ",
    "top_k": "engine/test_v1.py::test_sampling_from_the_likeliest_token_alone_is_greedy",
    "top_p": "engine/test_v1.py::test_sampling_from_the_likeliest_token_alone_is_greedy",
}

COMPLETION = {
    "add_special_tokens": "engine/test_sampling_fields.py::test_special_tokens_are_added_to_the_prompt",
    "best_of": "engine/test_sampling_fields.py::"
    "test_best_of_keeps_the_highest_mean_log_probabilities_in_descending_order",
    "early_stopping": "spec/test_check_record.py",
    "echo": "engine/test_v2.py::test_echo",
    "frequency_penalty": "engine/test_v2.py::test_a_negative_penalty_makes_repetition_likelier",
    "guided_choice": "engine/test_structured_output.py",
    "guided_decoding_backend": "engine/test_structured_output.py",
    "guided_grammar": "engine/test_structured_output.py",
    "guided_json": "engine/test_structured_output.py",
    "guided_regex": "engine/test_structured_output.py",
    "guided_whitespace_pattern": "spec/test_check_record.py",
    "ignore_eos": "engine/test_v2.py::test_min_tokens_and_ignore_eos",
    "include_stop_str_in_output": "engine/test_v2.py::test_stop_string_in_the_output",
    "length_penalty": "engine/test_sampling_fields.py::test_length_penalty",
    "logit_bias": "engine/test_sampling_fields.py::test_logit_bias_bans_and_forces_tokens",
    "logprobs": "engine/test_v2.py::test_logprobs",
    "max_tokens": "engine/test_v2.py::test_max_tokens",
    "min_p": "engine/test_v2.py::test_sampling_from_the_likeliest_token_alone_is_greedy",
    "min_tokens": "engine/test_v2.py::test_min_tokens_and_ignore_eos",
    "model": "engine/test_v2.py::test_user_and_model",
    "n": "engine/test_v2.py::test_n_choices_for_each_prompt_in_order",
    "presence_penalty": "engine/test_v2.py::test_a_penalty_makes_repetition_rarer",
    "prompt": "engine/test_v2.py::test_prompts_reach_the_model_letter_for_letter",
    "repetition_penalty": "engine/test_v2.py::test_a_penalty_makes_repetition_rarer",
    "response_format": "engine/test_structured_output.py",
    "seed": "engine/test_v2.py::test_seed",
    "skip_special_tokens": "engine/test_v2.py::test_special_tokens_are_shown_on_request",
    "spaces_between_special_tokens": "engine/test_sampling_fields.py::test_spaces_between_special_tokens",
    "stop": "engine/test_v2.py::test_stop",
    "stop_token_ids": "engine/test_v2.py::test_stop_token_ids",
    "stream": "spec/test_check_record.py",
    "stream_options": "spec/test_check_record.py",
    "suffix": "engine/test_sampling_fields.py::test_a_suffix_where_the_model_takes_one",
    "temperature": "engine/test_v2.py::test_temperature_of_the_api_when_it_is_not_given",
    "top_k": "engine/test_v2.py::test_sampling_from_the_likeliest_token_alone_is_greedy",
    "top_p": "engine/test_v2.py::test_sampling_from_the_likeliest_token_alone_is_greedy",
    "use_beam_search": "engine/test_sampling_fields.py::test_beam_search_finds_what_is_likelier_than_the_greedy_answer",
    "user": "engine/test_v2.py::test_user_and_model",
}
"""What is refused whatever the engine is tested without one, in ``spec``."""


CHAT = {
    **{name: COMPLETION[name] for name in COMPLETION if name in SamplingFields.model_fields},
    "add_generation_prompt": "engine/test_chat.py::test_whether_the_template_opens_the_answer",
    "add_special_tokens": "engine/test_chat.py::test_special_tokens_are_added_to_what_the_template_made",
    "allowed_token_ids": "engine/test_chat.py::test_allowed_token_ids",
    "bad_words": "engine/test_chat.py::test_bad_words",
    "best_of": "engine/test_sampling_fields.py::test_best_of_in_a_chat",
    "chat_template": "engine/test_chat.py::test_a_record_may_bring_its_own_template",
    "chat_template_kwargs": "engine/test_chat.py::test_values_for_the_template",
    "continue_final_message": "engine/test_chat.py::test_continuing_a_message_opens_no_answer",
    "documents": "engine/test_chat.py::test_values_for_the_template",
    "echo": "engine/test_chat.py::test_the_last_message_can_be_continued",
    "include_reasoning": "engine/test_chat_settings.py::test_reasoning_can_be_left_out",
    "logit_bias": "engine/test_chat.py::test_logit_bias",
    "logprobs": "engine/test_chat.py::test_logprobs",
    "max_completion_tokens": "engine/test_chat.py::test_max_tokens",
    "max_tokens": "engine/test_chat.py::test_max_tokens",
    "media_io_kwargs": "engine/test_chat_settings.py::test_arguments_of_reading",
    "messages": "engine/test_chat.py::test_a_system_message_and_earlier_turns_count",
    "metadata": "engine/test_chat.py::test_metadata_come_back",
    "min_tokens": "engine/test_chat.py::test_min_tokens",
    "mm_processor_kwargs": "engine/test_chat_settings.py::test_arguments_of_the_processor",
    "n": "engine/test_chat.py::test_n_and_seed",
    "parallel_tool_calls": "engine/test_chat_tools.py::test_it_may_call_several_at_once",
    "prompt_logprobs": "engine/test_chat.py::test_the_log_probabilities_of_the_prompt",
    "reasoning_effort": "engine/test_chat.py::test_values_for_the_template",
    "return_token_ids": "engine/test_chat.py::test_token_ids_are_given_on_request",
    "seed": "engine/test_chat.py::test_n_and_seed",
    "stop": "engine/test_chat.py::test_stop",
    "thinking_token_budget": "engine/test_chat_settings.py::test_a_budget_ends_the_thinking",
    "tool_choice": "engine/test_chat_tools.py::test_it_must",
    "tools": "engine/test_chat_tools.py::test_the_model_may_call_a_tool",
    "top_logprobs": "engine/test_chat.py::test_logprobs",
    "truncate_prompt_tokens": "engine/test_chat.py::test_a_prompt_can_be_truncated_at_either_end",
    "truncation_side": "engine/test_chat.py::test_a_prompt_can_be_truncated_at_either_end",
    "use_beam_search": "engine/test_sampling_fields.py::test_beam_search_in_a_chat",
    **dict.fromkeys(UNSERVED, "spec/test_check_chat.py"),
}
"""What both kinds of records have alike is tried on one of them."""


@pytest.mark.parametrize(
    ("tested", "model"),
    [
        (V1_CONTENT, CreateBatchCompletionsV1RequestContent),
        (COMPLETION, CompletionV2Request),
        (CHAT, ChatCompletionV2Request),
    ],
)
def test_every_field_has_a_test(tested: Mapping[str, str], model: type) -> None:
    assert tested.keys() == model.model_fields.keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("field", "where"), [*V1_CONTENT.items(), *COMPLETION.items(), *CHAT.items()])
def test_the_test_is_there_and_is_about_the_field(field: str, where: str) -> None:
    file, _, name = where.partition("::")
    text = (TESTS / file).read_text()
    if name:
        (found,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
        first = min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])
        text = "\n".join(text.splitlines()[first - 1 : found.end_lineno])
    assert field in text
