"""``python -m airflow_llmengine.worker``: the same as ``llmengine-batch``, as the only program of a container."""

# Guarded, because vLLM starts its own processes by importing the main module again.
if __name__ == "__main__":
    import sys

    from airflow_llmengine.worker.early_signals import catch_signals

    # The others have nothing to save: they simply end. Before the rest is imported, which takes a second.
    if sys.argv[1:2] in (["run"], ["collect"], ["follow"]):
        catch_signals()

    from airflow_llmengine.spec.exit_codes import ExitCode
    from airflow_llmengine.worker.cli import main
    from airflow_llmengine.worker.stopping import end_process

    # Without the interpreter's own end: what threads and libraries say, or hang in, there would come after this
    # program's last line, which a container's termination message shows.
    end_process(ExitCode(main()))
