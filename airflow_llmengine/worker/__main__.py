"""``python -m airflow_llmengine.worker``: the same as ``llmengine-batch``."""

import sys

from airflow_llmengine.worker.cli import main

# Guarded, because vLLM starts its own processes by importing the main module again.
if __name__ == "__main__":
    sys.exit(main())
