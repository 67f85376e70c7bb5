"""What must be set before JAX is imported: tests run on the CPU unless told otherwise, and ranks never broadcast."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
