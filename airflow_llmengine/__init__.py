"""Batch LLM completions inside Apache Airflow."""

__version__ = "0.1.0"
