"""Answers kept on storage for later runs: found before an engine is loaded, and added to as records are answered.

Imported only where a ``cache_path`` is given, or the cache is looked after: it needs pyarrow and numpy, which the extra
``parquet`` brings.
"""
