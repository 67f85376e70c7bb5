"""Every claim of the paper on one sheet: what was measured, by which test, and the verdict that follows."""
