# syntax=docker/dockerfile:1
# Airflow with the provider, for scheduler, workers, triggerer and API server alike; vLLM is in the worker's image.
#
#   docker build -f docker/airflow.Dockerfile -t llmengine-airflow:0.1.0 .
#
# `--target laptop` adds an environment with vLLM's CPU build, which compose.yaml's connection names: the local launcher
# starts the worker beside the task, so its Python must be in the same container.
ARG AIRFLOW_VERSION=3.3.2
ARG PYTHON_VERSION=3.11
FROM apache/airflow:${AIRFLOW_VERSION}-python${PYTHON_VERSION} AS provider

ARG AIRFLOW_VERSION
COPY LICENSE README.md pyproject.toml /opt/src/
COPY airflow_llmengine /opt/src/airflow_llmengine
# Airflow is named so that it stays what it is.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" "/opt/src[airflow,s3,gcs,azure]"

FROM provider AS laptop

USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ libnuma1 \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*
ARG UV_TORCH_BACKEND=cpu
ARG UV_FIND_LINKS=
COPY requirements /opt/src/requirements
COPY docker/cpu-environment.sh /opt/src/docker/
RUN --mount=type=cache,target=/root/.cache/uv /opt/src/docker/cpu-environment.sh /usr/python/bin/python3
RUN /opt/llmengine/bin/pip install --no-cache-dir --no-deps /opt/src
USER 50000
# A volume that is mounted here is Airflow's user's.
RUN mkdir -p /home/airflow/.cache

# Without a target it is Airflow alone.
FROM provider
