"""What every room stands on: contracts, rows, batches, the objective, devices, statistics, errors."""
