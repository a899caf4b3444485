"""What whoever writes the input can not ask of a worker; see docs/threat_model.md."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.results import RecordError
from airflow_llmengine.worker.readers.validate import to_record
from airflow_llmengine.worker.records import RawRecord
from tests.worker.readers.files import request_for

MESSAGES = [{"role": "user", "content": "a"}]

ASKED: dict[str, dict[str, Any]] = {
    "code that the engine imports": {"prompt": "a", "logits_processors": ["os.system"]},
    "code that comes with a model": {"prompt": "a", "trust_remote_code": True},
    "another model": {"prompt": "a", "model": "../elsewhere"},
    "an adapter of its own": {"prompt": "a", "lora_request": {"path": "/etc"}},
    "arguments of a processor": {"messages": MESSAGES, "mm_processor_kwargs": {"trust_remote_code": True}},
    "a place to move caches to": {"prompt": "a", "kv_transfer_params": {"remote_host": "elsewhere"}},
    "an endpoint": {"custom_id": "c", "method": "GET", "url": "http://elsewhere/", "body": {"prompt": "a"}},
    "a million completions": {"prompt": "a", "n": 1_000_000},
    "its own file's name": {"prompt": "a", "output_data_path": "/etc/passwd"},
}


@pytest.mark.parametrize("what", ASKED)
def test_a_record_can_ask_for_nothing_but_a_completion(what: str) -> None:
    record = to_record(RawRecord(0, "line 1", ASKED[what], 9), request_for("/x"), None)
    assert isinstance(record, RecordError)


def test_a_template_in_a_prompt_is_text() -> None:
    """So is all that looks like one in a message: the chat's own template gets it as a value."""
    for value in ({"prompt": "{{ 1 }}"}, {"messages": [{"role": "user", "content": "{% raw %}{{ 1 }}"}]}):
        record = to_record(RawRecord(0, "line 1", value, 9), request_for("/x"), None)
        assert not isinstance(record, RecordError)
        assert record.request.given() == value  # type: ignore[union-attr]
