"""What runs where the model runs: readers, engines, the schedule of records, progress, and the command line.

Never imports airflow or kubernetes.
"""
