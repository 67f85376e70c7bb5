#!/usr/bin/env bash
# Makes a virtual environment for each peer, in the folder given (default: .peers). Set PYTHON to choose the interpreter.
set -euo pipefail
folder=${1:-.peers}
python=${PYTHON:-python3}
make() {
    local name=$1
    shift
    "$python" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}
make recurrentgemma recurrentgemma==1.0.1 jax==0.10.2 flax==0.12.8 optax safetensors
make transformers torch==2.13.0 transformers==5.23.0 numpy
