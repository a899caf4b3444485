"""vLLM over two nodes, as two processes of this machine: a stage of the model on each.

The model is made here: two layers with random weights, so that little is loaded, and a wrong number shows.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROMPTS = ([504, 3575, 282, 4649, 314], [28, 1039], list(range(1000, 1040)))
NEW_TOKENS = 12


def random_model(folder: Path, tokenizer: Path) -> list[str]:
    """Make a checkpoint of random weights; gives what it answers to each prompt."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        # Wide, so that no two tokens are nearly as likely.
        initializer_range=0.3,
        eos_token_id=0,
        bos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    for path in tokenizer.glob("*token*"):
        shutil.copy(path, folder)
    words = AutoTokenizer.from_pretrained(folder)
    answers = []
    for prompt in PROMPTS:
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        answers.append(words.decode(ids[0][len(prompt) :], skip_special_tokens=True))
    return answers


def start(command: str, request: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "LLMENGINE_NODE_TOKEN": "what these nodes share",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Compiling takes minutes, and makes no difference here; with enforce_eager vLLM has no stages on a CPU.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_USE_AOT_COMPILE": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "airflow_llmengine.worker", command, str(request), *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_nodes_answer_as_the_model_does(tmp_path: Path, quickstart_model: Path) -> None:
    expected = random_model(tmp_path / "model", quickstart_model)
    lines = [json.dumps({"prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}) for prompt in PROMPTS]
    (tmp_path / "input.jsonl").write_text("\n".join(lines))
    model = {"model": str(tmp_path / "model"), "dtype": "float32", "max_model_len": 128, "max_num_seqs": 4}
    job: dict[str, Any] = {
        "input_data_path": str(tmp_path / "input.jsonl"),
        "output_data_path": str(tmp_path / "output.json"),
        "model_config": model,
        "nodes_per_worker": 2,
    }
    request = tmp_path / "request.json"
    request.write_text(json.dumps(job))
    with socket.create_server(("", 0)) as server:
        port = f"--nodes-port={server.getsockname()[1]}"
    nodes = [start("run", request, port), start("follow", request, port, "--node=1", "--leader=localhost")]
    try:
        logs = [node.communicate(timeout=600)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(logs)
    answers = json.loads((tmp_path / "output.json").read_text())
    assert [answer["choices"][0]["text"] for answer in answers] == expected
