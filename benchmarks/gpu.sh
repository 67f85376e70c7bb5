#!/usr/bin/env bash
# Everything that wants a GPU, in at most eight minutes, its parts in the order of their worth: kernels against their oracle,
# the README's first command with an empty and with a filled compilation cache, seeds, reading, kernels against a copy, training
# steps of 400M parameters, decoding at 1B. Each row is in the JSON file as soon as it is measured; exit code 1 and the last
# line say that a part failed. Needs Python 3.11 or newer with JAX for the GPU, Flax, Optax, Orbax, NumPy, jaxtyping and
# rich; for the README's command also hydra-core with OmegaConf and its antlr4-python3-runtime 4.9.3, filelock, matplotlib
# and SciPy. No pytest and no network.
#
#     bash benchmarks/gpu.sh gpu.json              # on the GPU
#     bash benchmarks/gpu.sh gpu.json --small      # anywhere: the same, tiny and in interpret mode, to see that it runs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -u benchmarks/gpu.py "$@"
