#!/bin/sh
# Make /opt/llmengine: a Python environment with vLLM's CPU build, exactly as it is tested. Beside this script's folder
# lies requirements/; the package itself is installed by whoever calls this, so that a change of it leaves this alone.
#
#   cpu-environment.sh PYTHON
#
#   UV_TORCH_BACKEND  cpu: PyTorch's CPU build is taken from PyTorch's own package index
#   UV_FIND_LINKS     a folder or page with its wheel, where that index can't be reached (and UV_TORCH_BACKEND is empty)
set -eu
requirements=$(dirname "$0")/../requirements
[ -n "${UV_TORCH_BACKEND:-}" ] || unset UV_TORCH_BACKEND
# Where the Dockerfiles mount a cache; some images name another folder, which would stay in the image.
export UV_CACHE_DIR=/root/.cache/uv

"$1" -m venv /opt/llmengine
tools=$(mktemp -d)
/opt/llmengine/bin/pip install --quiet --no-cache-dir --target "$tools" "$(grep '^uv==' "$requirements/test.txt")"
# Compiled now: the worker can't write to its root file system. Copied: the cache may be on another.
UV_LINK_MODE=copy "$tools/bin/uv" pip install --quiet --python /opt/llmengine/bin/python --no-deps --compile-bytecode \
    --requirement "$requirements/torch-cpu.txt" --requirement "$requirements/worker-cpu.txt"
rm -r "$tools"

# A sixth of it serves nobody: PyTorch's own tests, and vLLM's symbols for a debugger.
cd /opt/llmengine/lib/python3*/site-packages
rm -rf torch/test torch/bin/test_*
strip --strip-unneeded vllm/*.so

# Whether all that is needed is there is seen now, and not by a worker.
/opt/llmengine/bin/python -c 'import vllm.entrypoints.launchers.api_server.app_state, vllm.v1.engine.async_llm'
