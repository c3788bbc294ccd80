"""In which order: op orders as data, one simulator, the bounds that belong to them. Takes durations, never a cost."""
