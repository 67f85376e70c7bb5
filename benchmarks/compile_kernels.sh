#!/usr/bin/env bash
# Compiles every kernel for TPU v4, v5e, v5p, v6e and for an H200, with neither at hand, and fails if one does not compile
# or spills registers. Counts the launches of a training step on an H200. Makes its own environment (about 1 GB) in $VENV, by
# default build/compile-kernels.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-build/compile-kernels}
if [[ ! -e $venv/ready ]]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet "jax[tpu]==0.10.2" jaxtyping absl-py flax optax filelock
    "$venv/bin/pip" install --quiet --no-deps "jax-cuda12-plugin==0.10.2" "jax-cuda12-pjrt==0.10.2" nvidia-cuda-nvcc-cu12
    touch "$venv/ready"
fi

run() {
    PYTHONPATH=. "$venv/bin/python" "benchmarks/kernels/$1.py" "$2" 2>"$venv/stderr" || {
        cat "$venv/stderr" >&2
        exit 1
    }
}

echo "| operation | kernel | registers | bytes spilled | instructions in the loop |"
echo "|---|---|---|---|---|"
run compile h200
echo
echo "| program | what | count |"
echo "|---|---|---|"
run steps griffin
echo
echo "| target | operation, with its gradient | compiled in |"
echo "|---|---|---|"
MOSAIC_GPU_DUMP_PTXAS=1 run compile h200-mosaic >"$venv/mosaic" # the assembler's own report, between the rows
grep '^|' "$venv/mosaic"
for target in v4:2x2x1 v5e:2x2 v5p:2x2x1 v6e:2x2; do
    run compile "$target"
done
echo
grep -q 'Used [0-9]* registers' "$venv/mosaic" || {
    echo "the assembler reported nothing of Mosaic GPU's kernels" >&2
    exit 1
}
echo "Mosaic GPU: at most $(grep -oE 'Used [0-9]+' "$venv/mosaic" | grep -oE '[0-9]+' | sort -n | tail -1) registers"
if grep -E '[1-9][0-9]* bytes spill' "$venv/mosaic"; then
    echo "a Mosaic GPU kernel spills registers" >&2
    exit 1
fi
