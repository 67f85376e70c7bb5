"""What lm-eval needs of us: its command, a model, data sets, tasks."""
