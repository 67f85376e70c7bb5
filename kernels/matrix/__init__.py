"""Recurrences whose state is a matrix: by a loop over time, or in chunks of it."""
