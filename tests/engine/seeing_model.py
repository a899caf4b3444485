"""A tiny model that takes images, and thinks between two tokens of its own: random weights, so that it says nonsense.

It is a BLIP-2, whose code in vLLM is the one that runs without torchvision.
"""

from __future__ import annotations

from pathlib import Path

SIDE = 28
"""Pixels of an image's side, as the model sees it."""


def make_seeing_model(text_model: Path, directory: Path) -> None:
    """Write such a model to a directory.

    Args:
        text_model: Whose tokenizer it takes.
        directory: Where its files go.
    """
    import torch
    from transformers import (
        AutoTokenizer,
        Blip2Config,
        Blip2ForConditionalGeneration,
        Blip2Processor,
        Blip2QFormerConfig,
        Blip2VisionConfig,
        OPTConfig,
    )
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    # vLLM's attention on the CPU takes heads of multiples of 32.
    size = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    tokenizer = AutoTokenizer.from_pretrained(text_model)
    # Not special, as those of real models: they would be left out of the text in which a parser looks for them.
    tokenizer.add_tokens(["<think>", "</think>"])
    processor = Blip2Processor(
        BlipImageProcessorPil(size={"height": SIDE, "width": SIDE}), tokenizer, num_query_tokens=4
    )
    tokenizer = processor.tokenizer
    config = Blip2Config(
        vision_config=Blip2VisionConfig(**size, intermediate_size=64, image_size=SIDE, patch_size=14).to_dict(),
        qformer_config=Blip2QFormerConfig(
            **{**size, "num_hidden_layers": 2}, vocab_size=8, intermediate_size=64, encoder_hidden_size=64
        ).to_dict(),
        text_config=OPTConfig(
            **size,
            vocab_size=len(tokenizer),
            ffn_dim=64,
            word_embed_proj_dim=64,
            max_position_embeddings=512,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ).to_dict(),
        num_query_tokens=4,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    torch.manual_seed(0)
    Blip2ForConditionalGeneration(config).save_pretrained(directory)
    processor.save_pretrained(directory)
