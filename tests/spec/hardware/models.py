"""Well-known models: what their ``config.json`` says, and what their authors say of their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_llmengine.spec.hardware.model_facts import ModelFacts, model_facts

LLAMA = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}
LLAMA |= {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }
}
LLAMA |= {"torch_dtype": "bfloat16", "tie_word_embeddings": False}
LLAMA_405B = LLAMA | {
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}
MIXTRAL = {
    "model_type": "mixtral",
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class KnownModel:
    """A model whose needs are known."""

    name: str
    config: dict[str, Any]
    parameters: float
    """As its authors count them, in billions."""
    stored_bytes: int | None = None
    """``total_size`` of its index, or the size of its one file, as published."""

    @property
    def facts(self) -> ModelFacts:
        """What is read out of it."""
        return model_facts(self.config, self.stored_bytes)


MODELS = {
    model.name: model
    for model in (
        KnownModel(
            "Qwen/Qwen2.5-0.5B-Instruct",
            {
                "model_type": "qwen2",
                "hidden_size": 896,
                "intermediate_size": 4864,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "vocab_size": 151936,
                "max_position_embeddings": 32768,
                "sliding_window": 32768,
                "use_sliding_window": False,
                "tie_word_embeddings": True,
                "torch_dtype": "bfloat16",
            },
            0.494,
            988_097_824,
        ),
        KnownModel(
            "HuggingFaceTB/SmolLM2-1.7B-Instruct",
            {
                "model_type": "llama",
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 24,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "vocab_size": 49152,
                "max_position_embeddings": 8192,
                "tie_word_embeddings": True,
                "torch_dtype": "bfloat16",
            },
            1.711,
        ),
        KnownModel(
            "mistralai/Mistral-7B-Instruct-v0.3",
            {
                "model_type": "mistral",
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "vocab_size": 32768,
                "max_position_embeddings": 32768,
                "sliding_window": None,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            },
            7.248,
        ),
        KnownModel(
            "meta-llama/Llama-3.1-8B-Instruct",
            LLAMA
            | {
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
            },
            8.030,
            16_060_522_496,
        ),
        KnownModel(
            "openai/gpt-oss-20b",
            GPT_OSS
            | {
                "num_hidden_layers": 24,
                "num_local_experts": 32,
                "layer_types": ["sliding_attention", "full_attention"] * 12,
            },
            20.9,
        ),
        KnownModel(
            "Qwen/Qwen3-30B-A3B",
            {
                "model_type": "qwen3_moe",
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "moe_intermediate_size": 768,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "vocab_size": 151936,
                "max_position_embeddings": 40960,
                "sliding_window": None,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            },
            30.53,
        ),
        KnownModel(
            "mistralai/Mixtral-8x7B-Instruct-v0.1",
            MIXTRAL
            | {
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "vocab_size": 32000,
                "max_position_embeddings": 32768,
            },
            46.70,
            93_405_585_408,
        ),
        KnownModel(
            "meta-llama/Llama-3.1-70B-Instruct",
            LLAMA
            | {
                "hidden_size": 8192,
                "intermediate_size": 28672,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
            },
            70.55,
            141_107_412_992,
        ),
        KnownModel(
            "Qwen/Qwen2.5-72B-Instruct-AWQ",
            {
                "model_type": "qwen2",
                "hidden_size": 8192,
                "intermediate_size": 29696,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "vocab_size": 152064,
                "max_position_embeddings": 32768,
                "use_sliding_window": False,
                "tie_word_embeddings": False,
                "torch_dtype": "float16",
                "quantization_config": {
                    "quant_method": "awq",
                    "bits": 4,
                    "group_size": 128,
                    "zero_point": True,
                    "modules_to_not_convert": None,
                },
            },
            72.96,
        ),
        KnownModel(
            "openai/gpt-oss-120b",
            GPT_OSS
            | {
                "num_hidden_layers": 36,
                "num_local_experts": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 18,
            },
            116.8,
        ),
        KnownModel(
            "mistralai/Mixtral-8x22B-Instruct-v0.1",
            MIXTRAL
            | {
                "hidden_size": 6144,
                "intermediate_size": 16384,
                "num_hidden_layers": 56,
                "num_attention_heads": 48,
                "vocab_size": 32768,
                "max_position_embeddings": 65536,
            },
            140.63,
        ),
        KnownModel(
            "meta-llama/Llama-3.1-405B-Instruct-FP8",
            LLAMA_405B
            | {
                "quantization_config": {
                    "quant_method": "fbgemm_fp8",
                    "activation_scale_ub": 1200.0,
                    "modules_to_not_convert": [
                        *(f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(126) for name in "qkvo"),
                        *(f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 125) for name in ("gate", "down")),
                    ],
                }
            },
            405.85,
        ),
        KnownModel("meta-llama/Llama-3.1-405B-Instruct", LLAMA_405B, 405.85, 811_706_777_600),
        KnownModel(
            "deepseek-ai/DeepSeek-R1",
            {
                "model_type": "deepseek_v3",
                "hidden_size": 7168,
                "intermediate_size": 18432,
                "moe_intermediate_size": 2048,
                "num_hidden_layers": 61,
                "num_nextn_predict_layers": 1,
                "num_attention_heads": 128,
                "num_key_value_heads": 128,
                "n_routed_experts": 256,
                "n_shared_experts": 1,
                "num_experts_per_tok": 8,
                "first_k_dense_replace": 3,
                "moe_layer_freq": 1,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "vocab_size": 129280,
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
                "quantization_config": {
                    "quant_method": "fp8",
                    "fmt": "e4m3",
                    "activation_scheme": "dynamic",
                    "weight_block_size": [128, 128],
                },
            },
            671.0,
            688_586_727_753,
        ),
    )
}


def facts_of(name: str) -> ModelFacts:
    """The facts of the model whose name ends so."""
    (model,) = (model for model in MODELS.values() if model.name.endswith(name))
    return model.facts
