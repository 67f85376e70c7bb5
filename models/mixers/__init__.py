"""Temporal mixers, one file each. The contract that they keep is `evalkit.models.layers.Mixer`."""
