"""Accuracy by length and by training step, far beyond the training length."""
