# syntax=docker/dockerfile:1
# The worker where there is no GPU: vLLM's CPU build, for a laptop, for CI and for trying a cluster out.
#
#   docker build -f docker/worker-cpu.Dockerfile -t llmengine-worker-cpu:0.1.0 .
#
# Debian's own Python, headers and compiler fit one another: vLLM compiles a model when it starts.
ARG DEBIAN_VERSION=bookworm
FROM debian:${DEBIAN_VERSION}-slim

# Versions are Debian's stable release's.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates g++ libnuma1 python3 python3-dev python3-venv \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*

ARG UV_TORCH_BACKEND=cpu
ARG UV_FIND_LINKS=
COPY requirements /opt/src/requirements
COPY docker/cpu-environment.sh /opt/src/docker/
RUN --mount=type=cache,target=/root/.cache/uv /opt/src/docker/cpu-environment.sh /usr/bin/python3
ENV PATH=/opt/llmengine/bin:$PATH

COPY LICENSE README.md pyproject.toml /opt/src/
COPY airflow_llmengine /opt/src/airflow_llmengine
RUN pip install --no-cache-dir --no-deps /opt/src

# Who the worker is in a pod, too.
USER 1000:1000
ENV HOME=/tmp
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "airflow_llmengine.worker"]
