"""Running a model without gradients: through its cache, for scores and for text."""
