#!/usr/bin/env bash
# Everything that wants a GPU, in under nine minutes: kernels against their oracle, the autotune grid, the scan bench and the
# train-step bench, in one JSON file. Needs Python with JAX for the GPU, Flax, Optax, jaxtyping and rich; no network.
#
#     bash benchmarks/gpu.sh gpu.json              # on the GPU
#     bash benchmarks/gpu.sh gpu.json --small      # anywhere: the same, tiny and in interpret mode, to see that it runs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHONPATH=.:tests exec "${PYTHON:-python3}" -u benchmarks/gpu.py "$@"
