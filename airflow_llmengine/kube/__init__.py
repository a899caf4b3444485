"""From a job to the Kubernetes objects that run it, and from a dead pod to what happened: pure functions.

They build on the models of the ``kubernetes`` client. Nothing here talks to a cluster, and nothing imports Airflow.
"""
