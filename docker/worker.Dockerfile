# syntax=docker/dockerfile:1
# The worker on NVIDIA GPUs: vLLM's official image and this package beside vLLM, without Airflow.
#
#   docker build -f docker/worker.Dockerfile -t llmengine-worker:0.1.0 .
ARG VLLM_VERSION=0.32.0
FROM vllm/vllm-openai:v${VLLM_VERSION}

# As vLLM's documentation extends the image; vLLM and what it needs stay as they are.
ARG VLLM_VERSION
COPY LICENSE README.md pyproject.toml /opt/src/
COPY airflow_llmengine /opt/src/airflow_llmengine
RUN --mount=type=cache,target=/root/.cache/uv \
    uv pip install --system --link-mode copy --compile-bytecode "vllm==${VLLM_VERSION}" "/opt/src[s3,gcs,azure,parquet]"

# A pod calls its interpreter `python`, and some of vLLM's images have only python3.
RUN command -v python || ln -s "$(command -v python3)" /usr/local/bin/python
RUN python -m airflow_llmengine.worker --help

# Who the worker is in a pod, too.
USER 1000:1000
ENV HOME=/tmp
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "airflow_llmengine.worker"]
