"""What a job is: its request, records, results, manifest, state and identity.

Needs pydantic and the standard library only: it runs in the Airflow scheduler, in the worker and in a reader's script
alike.
"""
