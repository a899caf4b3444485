"""Checkpoints to fetch: small files that are what their names say."""

from __future__ import annotations

import json
import random

from tests.storage.s3_server import S3Server

RANGE = 1000
"""What the tests fetch at once, in bytes."""


def safetensors(size: int, seed: int = 0) -> bytes:
    """A whole safetensors file with one tensor of so many bytes."""
    tensor = {"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}, "__metadata__": {"format": "pt"}}
    header = json.dumps(tensor).encode()
    return len(header).to_bytes(8, "little") + header + random.Random(seed).randbytes(size)


def model(seed: int = 0, *, weights: int = 20 * RANGE) -> dict[str, bytes]:
    """The files of a model that an engine needs."""
    return {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "model-1.safetensors": safetensors(weights, seed),
        "model-2.safetensors": safetensors(weights // 2, seed + 1),
        "tokenizer/empty.txt": b"",
        "tokenizer/vocabulary.json": json.dumps({"word": seed}).encode(),
    }


def ranges(files: dict[str, bytes]) -> int:
    """How many requests it takes to read them."""
    return sum(-(-len(content) // RANGE) for content in files.values())


def put(server: S3Server, bucket: str, files: dict[str, bytes], folder: str = "models/small") -> str:
    """Put files into a bucket; gives the URL of their folder."""
    for name, content in files.items():
        server.client.put_object(Bucket=bucket, Key=f"{folder}/{name}", Body=content)
    return f"s3://{bucket}/{folder}"
