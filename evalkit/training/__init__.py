"""Gradients: settings, the compiled steps, the optimiser, checkpoints, signals."""
