"""Where a job's model comes from, and how its files get onto this machine: once, whole, and by one worker at a time."""
