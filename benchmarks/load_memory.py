"""Measures the memory that a full-size checkpoint takes to load and to score text with, against its own size.

    python benchmarks/load_memory.py                 # RecurrentGemma 2B in bfloat16, on this machine's CPU
    python benchmarks/load_memory.py --tokens 512

The checkpoint is made up: a header and a file of zeros, which takes no room on a disk that knows holes. What is loaded
takes the same memory as the real one. Each part runs in a process of its own; memory is the most that was resident.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PUBLISHED = {
    "model_type": "recurrent_gemma",
    "_block_types": ["recurrent", "recurrent", "attention"],
    "attention_window_size": 2048,
    "hidden_size": 2560,
    "intermediate_size": 15360,
    "lru_width": 2560,
    "num_attention_heads": 10,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "vocab_size": 256000,
}


def make_up(folder: Path, layers: int) -> int:
    """Writes the checkpoint with that many layers; returns its size in bytes."""
    from evalkit.models.formats import recurrentgemma

    config = PUBLISHED | {"num_hidden_layers": layers}
    header, end = {}, 0
    for tensor in recurrentgemma.tensors(recurrentgemma.parse(config)):
        start, end = end, end + 2 * int(np.prod(tensor.shape))
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return end


def measure(folder: Path, tokens: int) -> None:
    """Loads the checkpoint, scores that many tokens if any, and prints seconds and bytes as JSON."""
    from evalkit.inference.scoring import Request, Scorer
    from evalkit.models.formats import released
    from evalkit.parallel.devices import spare_memory, use_every_core

    use_every_core()
    spare_memory()
    before = peak()
    start = time.perf_counter()
    found = released.hugging_face(folder, "bfloat16")
    params = found.read()
    seconds = {"load": time.perf_counter() - start}
    if tokens:
        start = time.perf_counter()
        Scorer(found.model, params, found.model.vocab_size).scores([Request((2,), (3,) * tokens)])
        seconds["score"] = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "bytes": peak() - before}))


def peak() -> int:
    """The most bytes that this process has had resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Reads the command line and prints one line a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128, help="scored in one sequence")
    parser.add_argument("--layers", type=int, default=26)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure, given.tokens)
    with tempfile.TemporaryDirectory() as folder:
        size = make_up(Path(folder), given.layers)
        print(f"checkpoint: {size / 1e9:.2f} GB")
        for tokens in (0, given.tokens):
            command = [sys.executable, __file__, "--measure", folder, "--tokens", str(tokens)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found["seconds"].items())
            print(f"{tokens} tokens scored: {found['bytes'] / size:.2f} x its size ({times})", flush=True)


if __name__ == "__main__":
    main()
