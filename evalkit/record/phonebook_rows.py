"""What the rows of a phonebook lookup are called; nothing heavy is imported for it."""

METRICS = ("exact_match", "digit_accuracy", "log_probability")
ALL, INSIDE, OUTSIDE = "all", "inside", "outside"
"""Of which prompts: all, or those whose answer is inside or outside of the model's window."""
