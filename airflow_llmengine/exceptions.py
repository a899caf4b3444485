"""What can go wrong with a task, one class for each thing that a person or a callback would treat differently.

::

    LLMEngineError                          everything below; an AirflowException
    ├── RequestRefusedError           *     the request breaks the contract, before anything is launched
    ├── ConnectionUnusableError       *     the Airflow connection is missing, or can't be used as it is
    ├── LaunchForbiddenError          *     the job must not start: foreign output, used-up deadline, cancelled
    ├── JobNotLaunchedError           *     the task group's plan launched no job, so there is nothing to collect
    ├── ModelSizeUnknownError               the model's config could not be read just then, and the job needs it
    ├── StorageFailedError                  input, output or job directory could not be read or written
    ├── StorageRefusedError           *     storage does not have what is asked for, or refuses it
    ├── ClusterUnavailableError             the Kubernetes API did not answer, or could not serve just then
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
        ├── ResultMissingError              the worker said "done", and no valid manifest says so
        └── PodFailedError                  the worker's pod could not be made or started, or was ended
            ├── PodQuotaError               the namespace's quota leaves no room for it
            ├── PodUnschedulableError       no node takes it, or its queue does not admit it
            ├── ImagePullError              its image could not be pulled in time
            ├── PodStartError               it could not be started, for a reason that may pass
            ├── PodRejectedError      *     the API server refuses it
            ├── ImageUnavailableError *     there is no such image, or no permission to pull it
            ├── PodMisconfiguredError *     it names what does not exist, or asks for what can't be run
            ├── WorkerOutOfMemoryError      killed for its memory, after something was generated
            ├── ModelOutOfMemoryError *     killed for its memory, before anything was
            ├── WorkerOutOfStorageError     evicted for its ephemeral storage, after something was generated
            ├── ModelOutOfStorageError *    evicted for its ephemeral storage, before anything was
            ├── PodPreemptedError           its place was given to a pod of a higher priority
            ├── PodEvictedError             evicted for the sake of its node, or by somebody who drains it
            ├── NodeLostError               its node shut down, or does not answer
            └── PodDeletedError             somebody deleted it

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


class ModelSizeUnknownError(LLMEngineError):
    """How large the model is could not be read just then, and the job does not say what hardware it needs."""


class StorageFailedError(LLMEngineError):
    """Input, output or job directory could not be read or written."""


class StorageRefusedError(_FailsAtOnce, LLMEngineError):
    """Storage does not have what is asked for, or refuses it: a missing input, no permission, an unknown scheme."""


class ClusterUnavailableError(LLMEngineError):
    """The Kubernetes API did not answer, or could not serve just then."""


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


class PodFailedError(JobFailedError):
    """The worker's pod could not be made or started, or something else than the worker ended it."""


class PodQuotaError(PodFailedError):
    """The namespace's quota leaves no room for the pod just now."""


class PodUnschedulableError(PodFailedError):
    """No node takes the pod, or its queue has not admitted it in time."""


class ImagePullError(PodFailedError):
    """The pod's image could not be pulled in time, for a reason that may pass."""


class PodStartError(PodFailedError):
    """The pod could not be started, for a reason that may pass."""


class PodRejectedError(_FailsAtOnce, PodFailedError):
    """The API server refuses the pod: permissions, admission, a quota that it can never fit, an invalid field."""


class ImageUnavailableError(_FailsAtOnce, PodFailedError):
    """There is no such image, or no permission to pull it."""


class PodMisconfiguredError(_FailsAtOnce, PodFailedError):
    """The pod names what does not exist, such as a Secret, or asks for what can't be run."""


class WorkerOutOfMemoryError(PodFailedError):
    """The worker was killed for its memory after something was generated. Retries find a record that does it."""


class ModelOutOfMemoryError(_FailsAtOnce, PodFailedError):
    """The worker was killed for its memory before it generated anything."""


class WorkerOutOfStorageError(PodFailedError):
    """The pod was evicted for its ephemeral storage after something was generated."""


class ModelOutOfStorageError(_FailsAtOnce, PodFailedError):
    """The pod was evicted for its ephemeral storage before anything was generated."""


class PodPreemptedError(PodFailedError):
    """The pod's place was given to a pod of a higher priority."""


class PodEvictedError(PodFailedError):
    """The pod was evicted for the sake of its node, or by somebody who drains it."""


class NodeLostError(PodFailedError):
    """The pod's node shut down, was taken away, or does not answer."""


class PodDeletedError(PodFailedError):
    """Somebody, or something in the cluster, deleted the pod."""
