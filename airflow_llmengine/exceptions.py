"""What can go wrong with a task, one class for each thing that a person or a callback would treat differently.

::

    LLMEngineError                          everything below; an AirflowException
    ├── RequestRefusedError           *     the request breaks the contract, before anything is launched
    ├── ConnectionUnusableError       *     the Airflow connection is missing, or can't be used as it is
    ├── LaunchForbiddenError          *     the job must not start: foreign output, used-up deadline, cancelled
    ├── JobNotLaunchedError           *     the task group's plan launched no job, so there is nothing to collect
    ├── StorageFailedError                  input, output or job directory could not be read or written
    ├── StorageRefusedError           *     storage does not have what is asked for, or refuses it
    ├── TaskKilledError                     Airflow ended the task: killed, cleared, marked, or shut down
    └── JobFailedError                      the worker ended without a result
        ├── InputRefusedError         *     the input as a whole, or the model, can't be used
        ├── TooManyFailedRecordsError *     more records failed than max_error_rate allows, or all of them
        ├── DeadlineExceededError     *     max_runtime_sec is used up
        ├── JobCancelledError         *     somebody cancelled the job
        ├── JobSupersededError        *     another launch took the output over
        ├── JobIncompleteError        *     the replicas ended, and something is left to do
        ├── JobInterruptedError             the worker was told to stop and saved its work
        ├── EngineDiedError                 the engine could not be started, or died
        ├── WorkerDiedError                 the worker process was killed, or failed by a defect
        └── ResultMissingError              the worker said "done", and no valid manifest says so

``*``: trying again without a change does not help. These are ``AirflowFailException`` too, so the task fails at once
and keeps its retries; ``retry_helps`` says the same to a callback or a ``RetryPolicy``. After all others Airflow's
retries go on where the attempt stopped: what was committed is never generated again.

Each message says what happened, what is kept, and what to do. None quotes a prompt, an output or a secret.
"""

from __future__ import annotations

from typing import ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException

KEPT = "What was finished is kept"
"""How every message says that an attempt's work is not lost."""


class LLMEngineError(AirflowException):
    """Base of everything that this provider raises in a task."""

    retry_helps: ClassVar[bool] = True
    """Whether the same task may succeed when Airflow simply tries it again."""


class _FailsAtOnce(AirflowFailException):
    """Mixed into errors that a retry can't mend: Airflow then does not retry, whatever ``retries`` says."""

    retry_helps: ClassVar[bool] = False


class RequestRefusedError(_FailsAtOnce, LLMEngineError):
    """The request breaks the contract. The message names every field that does, a line for each."""


class ConnectionUnusableError(_FailsAtOnce, LLMEngineError):
    """The connection of type ``llmengine``, or the storage connection that it names, can't be used as it is."""


class LaunchForbiddenError(_FailsAtOnce, LLMEngineError):
    """The job must not start as it is. Nothing was changed."""


class JobNotLaunchedError(_FailsAtOnce, LLMEngineError):
    """The task that plans the job did not launch it, so there is nothing to collect."""


class StorageFailedError(LLMEngineError):
    """Input, output or job directory could not be read or written."""


class StorageRefusedError(_FailsAtOnce, LLMEngineError):
    """Storage does not have what is asked for, or refuses it: a missing input, no permission, an unknown scheme."""


class TaskKilledError(LLMEngineError):
    """Airflow ended the task while it ran. Never a success, even if the work was done by then."""


class JobFailedError(LLMEngineError):
    """The worker ended without a result."""


class InputRefusedError(_FailsAtOnce, JobFailedError):
    """The input as a whole, or the model, can't be used."""


class TooManyFailedRecordsError(_FailsAtOnce, JobFailedError):
    """More records failed than ``max_error_rate`` allows, or every one of them."""


class DeadlineExceededError(_FailsAtOnce, JobFailedError):
    """``max_runtime_sec`` is used up. Clearing the task, or a new run, goes on with a new budget."""


class JobCancelledError(_FailsAtOnce, JobFailedError):
    """Somebody cancelled the job. Clearing the task goes on where it stopped."""


class JobSupersededError(_FailsAtOnce, JobFailedError):
    """Another launch took over the same ``output_data_path``."""


class JobIncompleteError(_FailsAtOnce, JobFailedError):
    """The replicas of a job ended, and something is left to do. Clearing those that failed goes on with it."""


class JobInterruptedError(JobFailedError):
    """The worker was told to stop by something else than Airflow, and saved its work."""


class EngineDiedError(JobFailedError):
    """The engine could not be started, or died."""


class WorkerDiedError(JobFailedError):
    """The worker process was killed, or failed by a defect of its own."""


class ResultMissingError(JobFailedError):
    """The worker said "done", and no valid manifest of this job says so."""
