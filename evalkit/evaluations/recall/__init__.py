"""Recall by distance, and what loses an answer."""
