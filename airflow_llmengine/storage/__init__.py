"""Where a job's input, output and state lie: URLs, atomic commits, manifests, heartbeats.

Works over fsspec and needs neither Airflow nor an engine. Credentials are passed in as options; none is looked up here.
"""
