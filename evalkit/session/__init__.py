"""What one process does with a run: start, resume, evaluate; and the runs of an experiment."""
