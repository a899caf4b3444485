"""From ``rope_scaling`` to overrides of a model's config."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.rope_scaling import RopeScalingError, rope_overrides, scaled_length

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_theta": 5, "rope_scaling": {"rope_theta": 1e6}},
    ],
    ids=str,
)
def test_the_base_of_the_models_own_is_kept(config: dict[str, Any]) -> None:
    assert rope_overrides(YARN, config) == {"rope_parameters": {**YARN, "rope_theta": 1e6}}


def test_a_base_that_is_given_stands() -> None:
    assert rope_overrides({**YARN, "rope_theta": 7}, {"rope_theta": 1e6})["rope_parameters"]["rope_theta"] == 7


def test_the_older_names_are_written_as_the_newer() -> None:
    assert rope_overrides({"type": "su", "factor": 2}, {})["rope_parameters"] == {"rope_type": "longrope", "factor": 2}


def test_a_language_model_within_another_is_overridden_there() -> None:
    scaling = {"type": "linear", "factor": 2}
    inner = {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 3}}
    assert rope_overrides(scaling, {"text_config": {"rope_theta": 3}, "rope_theta": 9}) == {"text_config": inner}
    thinker = {"thinker_config": {"text_config": {"rope_theta": 3}}}
    assert rope_overrides(scaling, thinker) == {"thinker_config": {"text_config": inner}}


def test_the_length_grows_where_vllm_takes_it_for_the_scaled_one() -> None:
    assert rope_overrides(YARN, {"max_position_embeddings": 4096})["max_position_embeddings"] == 8192
    assert rope_overrides(YARN, {"max_position_embeddings": 32768})["max_position_embeddings"] == 32768
    linear = rope_overrides({"type": "linear", "factor": 2}, {"max_position_embeddings": 4096})
    assert "max_position_embeddings" not in linear, "vLLM multiplies it by itself"
    again = {"max_position_embeddings": 8192, "rope_scaling": {**YARN}}
    wider = rope_overrides({"rope_type": "yarn", "factor": 4}, again)
    assert wider["max_position_embeddings"] == 16384
    assert wider["rope_parameters"]["original_max_position_embeddings"] == 4096


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"type": "linear", "factor": 2}, 2000),
        ({"type": "dynamic", "factor": 1.5}, 1500),
        ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 500}, 2000),
        ({"rope_type": "yarn", "factor": 4}, 4000),
        ({"rope_type": "yarn", "factor": 0.5}, 1000),
        ({"rope_type": "default", "factor": 4}, 1000),
        ({"rope_type": "linear", "factor": True}, 1000),
        ({"rope_type": "linear", "factor": -1}, 1000),
        ({"factor": 2}, 1000),
    ],
    ids=str,
)
def test_the_longest_sequence(scaling: dict[str, Any], length: int) -> None:
    assert scaled_length(scaling, 1000) == length


@pytest.mark.parametrize(
    ("scaling", "config", "said"),
    [
        ({"factor": 2}, {}, "names no rope_type"),
        ({"rope_type": 3}, {}, "names no rope_type"),
        (YARN, {"rope_parameters": {"full_attention": {"rope_theta": 1}}}, "for each kind of its layers"),
        (YARN, {"rope_scaling": [1]}, "for each kind of its layers"),
    ],
)
def test_what_can_not_be_laid_over_is_refused(scaling: Any, config: Any, said: str) -> None:
    with pytest.raises(RopeScalingError, match=said):
        rope_overrides(scaling, config)
