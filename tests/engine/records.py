"""Jobs and records for the tests of the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request, CreateBatchCompletionsV1RequestContent
from airflow_llmengine.worker.records import PromptRecord, Record

MAX_MODEL_LEN = 4096

CAPITAL = "The capital of France is"

ANSWERED = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is Paris."
)
"""A chat, as the model's template writes it, to whose answer the model adds only the token that ends it."""

BEGIN, END = "<|im_start|>", "<|im_end|>"
"""The special tokens at both ends of a chat's message; the second also ends the answer."""


def job(checkpoint: Path, **model: Any) -> CreateBatchCompletionsV1Request:
    """A job whose engine starts fast and computes exactly: no compilation, and 32 bits."""
    return CreateBatchCompletionsV1Request.model_validate(
        {
            "input_data_path": "in.jsonl",
            "output_data_path": "out.jsonl",
            "model_config": {
                "model": "small",
                "checkpoint_path": str(checkpoint),
                "dtype": "float32",
                "enforce_eager": True,
                "max_model_len": MAX_MODEL_LEN,
                "max_num_seqs": 32,
                **model,
            },
        }
    )


def v1(prompt: str, **fields: Any) -> Record:
    """A greedy V1 record."""
    content = CreateBatchCompletionsV1RequestContent.model_validate(
        {"prompts": [], "max_new_tokens": 8, "temperature": 0, **fields}
    )
    return Record(0, "element 0", PromptRecord(prompt, content))


def completion(prompt: Any, **fields: Any) -> Record:
    """A V2 completion record; greedy unless it says otherwise."""
    fields.setdefault("temperature", 0)
    return Record(0, "line 1", CompletionV2Request.model_validate({"prompt": prompt, **fields}))


def unchecked(prompt: Any, **fields: Any) -> Record:
    """A V2 completion record that the worker's own checks have not seen, and would have refused."""
    return Record(0, "line 1", CompletionV2Request.model_construct(prompt=prompt, temperature=0, **fields))


def unchecked_chat(**message: Any) -> Record:
    """A chat record of one message that the worker's own checks have not seen, and would have refused."""
    return Record(0, "line 1", ChatCompletionV2Request.model_construct(messages=[{"role": "user", **message}]))


def chat(content: Any, **fields: Any) -> Record:
    """A chat record of one message of the user's; greedy unless it says otherwise."""
    fields.setdefault("temperature", 0)
    fields.setdefault("messages", [{"role": "user", "content": content}])
    return Record(0, "line 1", ChatCompletionV2Request.model_validate(fields))
