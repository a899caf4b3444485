"""From a job's input to its records: whatever container, compression and encoding people write them in.

``open_input`` finds out what the input is; ``InputReader.records`` streams its records; ``validate.to_record`` makes of
each what an engine takes, or the error that stands in its place.
"""

from airflow_llmengine.worker.readers.errors import InputChangedError, InputCutError, InputInvalidError
from airflow_llmengine.worker.readers.reader import InputReader, open_input

__all__ = ["InputChangedError", "InputCutError", "InputInvalidError", "InputReader", "open_input"]
