"""What is read out of a config agrees with what vLLM itself reads out of it. No weights are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.hardware.engine_memory import MEMORY_UTILIZATION
from tests.spec.hardware.models import MODELS, KnownModel

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def vllms_view(folder: Path) -> Any:
    from vllm.config.model import _get_and_verify_max_len
    from vllm.transformers_utils.config import get_config, get_hf_text_config
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    config = get_config(str(folder), trust_remote_code=False)
    text = get_hf_text_config(config)
    view = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)(config, text).convert()
    longest = _get_and_verify_max_len(text, view, None, None, False, None)
    return view, longest


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_vllm_reads_the_same_shape(model: KnownModel, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model.config))
    view, longest = vllms_view(tmp_path)
    facts = model.facts
    assert facts.max_length == longest
    assert (facts.layers, facts.hidden_size, facts.heads, facts.vocabulary) == (
        view.total_num_hidden_layers,
        view.hidden_size,
        view.total_num_attention_heads,
        view.vocab_size,
    )
    assert (facts.latent is not None) == view.is_deepseek_mla
    if facts.latent is None:
        assert (facts.kv_heads, facts.head_size) == (view.total_num_kv_heads, view.head_size)
    else:
        assert facts.latent.kv_rank + facts.latent.rope_size == view.head_size
    assert (facts.mixture.experts if facts.mixture else 0) == view.num_experts


def test_vllms_own_share_of_the_memory_is_what_is_reckoned_with() -> None:
    from vllm.config import CacheConfig

    assert CacheConfig().gpu_memory_utilization == MEMORY_UTILIZATION
