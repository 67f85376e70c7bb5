"""Temporal mixers, one file each."""
