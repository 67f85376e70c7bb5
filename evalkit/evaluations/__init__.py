"""What is measured: accuracy by length, recall by distance, loss by position, lookups in text."""
