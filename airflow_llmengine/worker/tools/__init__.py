"""What a model may use while it writes: an interpreter for the Python code in its completion."""
