"""Times lm-eval's `hf` backend and ours on the same multiple-choice requests and checkpoint, in turn, in one process.

    pip install -e '.[parity]'
    python benchmarks/peers/lm_eval_speed.py

The checkpoint is a random RecurrentGemma on bytes. The `hf` backend is run at each batch size once; the best one then
takes turns with ours, scoring each choice alone and with the context read once. Model time: requests in, answers out,
everything compiled and warm. Also prints the largest difference of a log-likelihood.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.parallel.devices import use_every_core

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
Answers = list[tuple[float, bool]]


def checkpoint(folder: Path, width: int, layers: int) -> Path:
    """A random RecurrentGemma whose tokens are bytes, as transformers saves it."""
    import torch
    import transformers

    from evalkit.checkpoints import tokenizer_files

    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        vocab_size=258,
        hidden_size=width,
        intermediate_size=6 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=1,
        lru_width=width,
        attention_window_size=2048,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=0,
    )
    model = transformers.RecurrentGemmaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 * parameter.shape[-1] ** -0.5))
    model.save_pretrained(folder)
    tokenizer_files.write_bytes(folder)
    return folder


def requests(documents: int, context: int, choices: int) -> list[Any]:
    """Choices of 20 to 40 bytes after contexts of `context` tokens, the first one included."""
    from lm_eval.api.instance import Instance

    random = np.random.default_rng(0)

    def text(size: int) -> str:
        return bytes(random.integers(97, 123, size).astype(np.uint8)).decode()

    found = []
    for document in range(documents):
        shared = text(context - 1)
        found += [
            Instance("loglikelihood", {}, (shared, f" {text(random.integers(19, 40))}"), choice, ("", document, 1))
            for choice in range(choices)
        ]
    return found


def timed(run: Callable[[], Answers]) -> tuple[float, Answers]:
    """Seconds of one call, and what it answers."""
    start = time.perf_counter()
    answers = run()
    return time.perf_counter() - start, answers


def main() -> None:
    """Reads the command line, prints a line a backend and the ratios, and one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--context", type=int, default=1000, help="tokens")
    parser.add_argument("--choices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    use_every_core()
    from lm_eval.api.registry import get_model

    from evalkit.lm_eval.model import EvalkitLM

    asked = requests(given.documents, given.context, given.choices)
    with tempfile.TemporaryDirectory() as place:
        folder = checkpoint(Path(place), given.width, given.layers)
        hf = {
            size: get_model("hf")(
                pretrained=str(folder), dtype="float32", device="cpu", batch_size=size, max_length=4096
            )
            for size in BATCH_SIZES
        }
        seconds = {size: timed(lambda size=size: hf[size].loglikelihood(asked, True))[0] for size in BATCH_SIZES}
        best = min(seconds, key=lambda size: seconds[size])
        print("hf, seconds by batch size:", {size: round(value, 2) for size, value in seconds.items()}, flush=True)
        backends = {
            f"hf, batch size {best}": hf[best],
            "evalkit, each choice alone": EvalkitLM(str(folder), share_prefixes=False),
            "evalkit, shared prefixes": EvalkitLM(str(folder)),
        }
        answers = {name: model.loglikelihood(asked, True) for name, model in backends.items()}
        rounds = [
            {name: timed(lambda model=model: model.loglikelihood(asked, True))[0] for name, model in backends.items()}
            for _ in range(given.rounds)
        ]
    theirs = f"hf, batch size {best}"
    result = {"requests": len(asked), "context": given.context, "width": given.width, "layers": given.layers}
    for name in backends:
        took = statistics.median(round_[name] for round_ in rounds)
        ratio = statistics.median(round_[theirs] / round_[name] for round_ in rounds)
        error = max(abs(mine[0] - other[0]) for mine, other in zip(answers[name], answers[theirs], strict=True))
        result[name] = {"seconds": took, "ratio": ratio, "largest_difference": error}
        print(f"{name:<28}{took:8.2f} s{ratio:8.1f} x   largest difference {error:.1e}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
