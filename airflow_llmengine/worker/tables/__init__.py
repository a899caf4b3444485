"""Tables in and out: rows become records, and results columns. pyarrow and Jinja are imported only for one."""
