"""Times greedy decoding by this project and by its peers in turn: the same weights, prompts and tokens.

    bash benchmarks/peers/setup.sh                # once: the peers' virtual environments
    python benchmarks/peers/decode.py             # all cases; or: 250k_1 250k_prefill --rounds 5 --out FILE

The model is `griffin_released`, which all three can express, with random weights. Each call takes prompts to tokens by
what a user of each calls: `evalkit.inference.generate`, recurrentgemma's `Sampler`, transformers' `generate`. Run it on
an idle machine.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import jax
import numpy as np
from process import Process

from evalkit.configuration.models import chosen
from evalkit.models.formats import export

RELEASED = "model=griffin_released"
# A width whose square root is exact in bfloat16, so that all scale the embedding alike.
SIZES = {
    "250k": (258, [RELEASED]),
    "100m": (
        32000,
        [
            RELEASED,
            "model.width=784",
            "model.embedding_scale=28",
            "model.pattern=[recurrent,recurrent,attention]",
            "model.depth=12",
            "model.mixers.recurrent.width_rnn=784",
            "model.mixers.recurrent.gate_blocks=7",
            "model.mixers.attention.heads=7",
            "model.mixers.attention.head_dim=112",
            "model.mixers.attention.window=1024",
        ],
    ),
}
# By name: the size, the rows, the tokens of a prompt, and the tokens decoded. One token more is the prefill alone.
CASES = {
    "250k_1": ("250k", 1, 16, 512),
    "250k_16": ("250k", 16, 16, 512),
    "250k_prefill": ("250k", 1, 4096, 1),
    "100m_1": ("100m", 1, 16, 64),
    "100m_16": ("100m", 16, 16, 32),
}
PEERS = ("recurrentgemma", "transformers")


def written(size: str, folder: Path) -> tuple[Path, int]:
    """A folder with that model's random weights as transformers reads them, and its vocabulary."""
    vocab_size, settings = SIZES[size]
    place = folder / size
    if not place.exists():
        [sized] = chosen(settings)
        model = sized.built(vocab_size)
        export.write(place, model, jax.jit(model.init)(jax.random.key(0)), 1, None)
    return place, vocab_size


def compare(name: str, environments: Path, place: Path, rounds: int, calls: int) -> dict:
    """The times of one case, round by round, the ratio of each peer to ours, and whether the tokens are the same."""
    size, rows, prompt, tokens = CASES[name]
    folder, vocab_size = written(size, place)
    prompts = np.random.default_rng(0).integers(2, vocab_size, (rows, prompt))
    prompts[:, 0] = 1  # the token that begins every text
    case = {"folder": str(folder), "prompts": prompts.tolist(), "tokens": tokens}
    processes = {who: Process(who, "decode", environments, case) for who in ("ours", *PEERS)}
    try:
        times = {who: [] for who in processes}
        for _ in range(rounds):
            for who, process in processes.items():
                times[who].append(process.times(calls))
    finally:
        for process in processes.values():
            process.stop()
    found = {who: np.asarray(process.facts.pop("tokens")) for who, process in processes.items()}
    ratios = {who: [peer / ours for peer, ours in zip(times[who], times["ours"], strict=True)] for who in PEERS}
    same = {who: float((found[who] == found["ours"]).mean()) for who in PEERS}
    print(f"{name}: {rows} x {prompt} tokens in, {tokens} out")
    for who, taken in times.items():
        median = statistics.median(taken)
        line = f"  {who:<16}{median:10.1f} ms a call{rows * tokens / median * 1e3:12,.0f} tokens/s"
        if who in PEERS:
            pairs = "  ".join(f"{ratio:.2f}" for ratio in ratios[who])
            line += f"   ratio {statistics.median(ratios[who]):.2f}   pairs {pairs}   same tokens {same[who]:.1%}"
        print(line, flush=True)
    facts = {who: process.facts for who, process in processes.items()}
    return {"case": name, "facts": facts, "ms": times, "ratio": ratios, "same_tokens": same}


def main() -> None:
    """Reads the command line and times the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--out", type=Path, help="also write the result as JSON")
    given = parser.parse_args()
    unknown = sorted(set(given.cases) - set(CASES))
    if unknown:
        parser.error(f"unknown case {unknown[0]}; choose of {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as place:
        results = [
            compare(name, given.environments, Path(place), given.rounds, given.calls) for name in given.cases or CASES
        ]
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
