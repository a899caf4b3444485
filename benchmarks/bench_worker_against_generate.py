"""The worker's throughput against ``LLM.generate``: the same prompts, model and engine settings, side by side.

Each side runs in a process of its own, in turn, and is timed from the first record admitted to the last answer, without
the loading of the model. The ratio of one pair holds even when the machine's speed drifts between pairs.

    python benchmarks/bench_worker_against_generate.py [--model DIRECTORY] [--records 256] [--max-tokens 32] [--pairs 3]

The model is the quickstart's unless one is named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ENGINE_SETTINGS: dict[str, Any] = {
    "max_model_len": 1024,
    "max_num_seqs": 64,
    # For a processor: nothing is compiled before it runs. Leave both out on a GPU.
    "dtype": "float32",
    "enforce_eager": True,
    "seed": 0,
}

TOPICS = ("bread", "rain", "a lighthouse", "trains", "the Moon", "chess", "a river", "old maps", "bees", "glass")


def prompts(count: int) -> list[str]:
    """Short prompts of different lengths, all different."""
    return [
        f"Note {index}. Write a short text about {TOPICS[index % len(TOPICS)]}"
        + f" and {TOPICS[index // len(TOPICS) % len(TOPICS)]}" * (index % 4)
        + ". The text begins so:"
        for index in range(count)
    ]


def time_generate(model: str, count: int, max_tokens: int) -> dict[str, float]:
    """Run one side: ``LLM.generate`` over all prompts at once."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, disable_log_stats=True, **ENGINE_SETTINGS)
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    started = time.perf_counter()
    outputs = engine.generate(prompts(count), sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": sum(len(output.outputs[0].token_ids) for output in outputs)}


def time_worker(model: str, count: int, max_tokens: int) -> dict[str, float]:
    """Run the other side: the worker's command, over a file of JSON lines."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "input.jsonl"
        records.write_text(
            "".join(
                json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}) + "\n"
                for prompt in prompts(count)
            )
        )
        request = {
            "input_data_path": str(records),
            "output_data_path": str(Path(folder) / "output.jsonl"),
            "model_config": {"model": "benchmark", "checkpoint_path": model, **ENGINE_SETTINGS},
        }
        done = subprocess.run(
            [sys.executable, "-m", "airflow_llmengine.worker", "run", "-"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        sys.exit(done.stderr)
    seconds = re.search(r"generating ([0-9.]+) s", done.stderr)
    if seconds is None:
        sys.exit(f"no summary in the worker's log:\n{done.stderr}")
    return {"seconds": float(seconds[1]), "tokens": json.loads(done.stdout)["completion_tokens"]}


def quickstart_model() -> str:
    """Directory of the quickstart's model, which is made if it is not there yet."""
    script = Path(__file__).parent.parent / "scripts" / "prepare_quickstart_model.py"
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def run_side(side: str, options: argparse.Namespace) -> dict[str, float]:
    """Run one side in a process of its own."""
    done = subprocess.run(
        [
            *(sys.executable, __file__, "--model", options.model, "--side", side),
            *("--records", str(options.records), "--max-tokens", str(options.max_tokens)),
        ],
        stdout=subprocess.PIPE,
        stderr=None if options.verbose else subprocess.DEVNULL,
        text=True,
        check=True,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_CPU_KVCACHE_SPACE": "2"},
    )
    # vLLM may say something on standard output, too, and after the result.
    printed = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    result: dict[str, float] = json.loads(printed[-1])
    return result


def main() -> None:
    """Run the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory of the model")
    parser.add_argument("--records", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--verbose", action="store_true", help="show the engines' own output")
    parser.add_argument("--side", choices=("generate", "worker"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side = {"generate": time_generate, "worker": time_worker}[options.side]
        print(json.dumps(side(options.model, options.records, options.max_tokens)))
        return
    options.model = options.model or quickstart_model()
    ratios = []
    print(f"{options.records} records, {options.max_tokens} tokens each, {os.cpu_count()} processors")
    print(f"{'pair':>4} {'LLM.generate':>16} {'worker':>16} {'ratio':>7}")
    for pair in range(options.pairs):
        # Each side goes first in turn.
        order = ("generate", "worker") if pair % 2 == 0 else ("worker", "generate")
        found = {side: run_side(side, options) for side in order}
        speeds = {side: result["tokens"] / result["seconds"] for side, result in found.items()}
        ratios.append(speeds["worker"] / speeds["generate"])
        print(
            f"{pair + 1:>4} {speeds['generate']:>8.1f} tokens/s {speeds['worker']:>8.1f} tokens/s {ratios[-1]:>7.3f}",
            flush=True,
        )
    print(f"worker / LLM.generate: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


# Guarded, because vLLM starts its own processes by importing the main module again.
if __name__ == "__main__":
    main()
