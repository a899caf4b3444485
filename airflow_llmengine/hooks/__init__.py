"""Airflow's way to the jobs: the connection, the hook, and the local launcher."""
