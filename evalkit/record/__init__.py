"""What a run leaves behind: files, W&B, the console, the names of its metrics."""
