"""The table of what becomes of each engine field."""

from __future__ import annotations

from airflow_llmengine.spec.engine_fields import ENGINE_FIELDS, FIELD_OF, Becomes
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig


def test_every_field_is_there_once_in_the_contracts_order_and_none_more() -> None:
    assert [field.name for field in ENGINE_FIELDS] == list(CreateBatchCompletionsV1ModelConfig.model_fields)
    assert len(FIELD_OF) == len(ENGINE_FIELDS)


def test_each_says_what_becomes_of_it() -> None:
    for field in ENGINE_FIELDS:
        carried = field.becomes in (Becomes.ARGUMENT, Becomes.TRANSLATED)
        assert (field.argument is not None) == carried, field.name
        assert (field.remedy is not None) == (field.becomes is Becomes.REFUSED), field.name
        assert field.sentence
        assert not field.sentence.endswith("."), field.name
        assert field.sentence.isprintable()
