"""Which version may go on with a job that another version has launched.

The plugin that launches and the image in which the worker runs are upgraded apart from each other, and a retry may come
after an upgrade. So ``job.json`` says by which protocol the job is kept:

- **older than what launched it**: refused, before a model is loaded. It would leave out, or spoil, what it does not
  know of.
- **newer**: goes on with it, and keeps to the job's own protocol, since others that look at the job (the sensor, the
  other replicas) may know no later one. What is newer than that can't be used until the job is launched anew. A version
  that has unlearnt a protocol refuses it.

Within one protocol versions mix freely: documents may get new fields, which older readers ignore.
"""

from __future__ import annotations

from airflow_llmengine import __version__
from airflow_llmengine.spec.job_state import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, JobDocument

LONGEST_VERSION = 40
"""Characters of another version's name that are shown."""


def version_fault(job: JobDocument) -> str | None:
    """Say why this version can't go on with a job, and which can; None if it can."""
    launcher = _shown(job.plugin_version)
    launched_by = f"launched by airflow-llmengine {launcher} with version {job.protocol_version} of its files"
    if job.protocol_version > PROTOCOL_VERSION:
        return (
            f"the job was {launched_by}, and this is airflow-llmengine {__version__}, which knows them up to version "
            f"{PROTOCOL_VERSION}: use a worker image (or an installation) of airflow-llmengine {launcher} or newer"
        )
    if job.protocol_version < OLDEST_PROTOCOL_VERSION:
        return (
            f"the job was {launched_by}, and this is airflow-llmengine {__version__}, which knows them from version "
            f"{OLDEST_PROTOCOL_VERSION} on: finish it with a worker image (or an installation) of airflow-llmengine "
            f"{launcher}, or make the output anew with if_done='regenerate' (--if-done regenerate)"
        )
    return None


def differs_from_launcher(job: JobDocument) -> str | None:
    """Say that another version than this one launched the job, as the end of a sentence; None if it is the same."""
    if job.plugin_version == __version__:
        return None
    launcher = _shown(job.plugin_version)
    return (
        f"airflow-llmengine {launcher} launched the job, and this is {__version__}: use a worker image (or an "
        f"installation) of {launcher}, or launch it again"
    )


def _shown(version: str) -> str:
    # Whoever can write beside the output may have written it.
    return "".join(character if character.isprintable() else "?" for character in version)[:LONGEST_VERSION]
