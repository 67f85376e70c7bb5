"""Names of the metrics of a phonebook lookup, apart from what computes them: reports import no JAX."""

METRICS = ("exact_match", "digit_accuracy", "log_probability")
ALL, INSIDE, OUTSIDE = "all", "inside", "outside"
"""The prompts that a row averages: all, or those whose answer lies inside or outside the model's window."""
