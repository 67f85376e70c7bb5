"""Accuracy by length and by training step."""
