"""Times this project and its peers in turn, and prints their ratio pair by pair: training steps, or greedy decoding.

    python benchmarks/peers/compare.py setup      # once: the peers' virtual environments, in .peers
    python benchmarks/peers/compare.py step       # all cases; or: step griffin_256 mqa_256 --rounds 5 --out FILE
    python benchmarks/peers/compare.py decode     # all cases; or: decode 250k_1 250k_prefill --rounds 5 --out FILE

Every implementation is a process of its own that waits while another one is timed. Run it on an idle machine.

What decodes is `griffin_released`, which all three can express, with the same random weights, prompts and tokens. Each
call takes prompts to tokens by what a user of each calls: `evalkit.inference.generate`, recurrentgemma's `Sampler`,
transformers' `generate`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from process import Process

from evalkit.configuration.models import chosen
from evalkit.models.formats import export

PACKAGES = {
    "recurrentgemma": ("recurrentgemma==1.0.1", "jax==0.10.2", "flax==0.12.8", "optax", "safetensors"),
    "transformers": ("torch==2.13.0", "transformers==5.23.0", "numpy"),
}
# The scan that is fastest there; its default takes a minute to compile and is no faster.
STEP = {"batch": 32, "length": 256, "window": None, "scored": 1, "scan": "ASSOCIATIVE_NATIVE"}


def induction(model: str, batch: int, length: int, *more: str) -> list[str]:
    """The overrides of one stage of induction heads at these sizes, trained as a peer is: without state passing."""
    sizes = [f"task.length={length}", f"train.batch_size={batch}", "train.state_passing=null", "train.average=null"]
    return [f"model={model}", "task=induction_heads", *sizes, *more]


WINDOW = "model.mixers.attention.window"
STEPS = {
    "griffin_256": STEP | {"model": "griffin", "window": 128, "overrides": induction("griffin", 32, 256)},
    "hawk_256": STEP | {"model": "hawk", "overrides": induction("hawk", 32, 256)},
    "mqa_256": STEP | {"model": "mqa", "overrides": induction("mqa", 32, 256)},
    "griffin_copying_1040": STEP
    | {
        "model": "griffin",
        "batch": 16,
        "length": 1040,
        "window": 512,
        "scored": 16,
        "overrides": ["model=griffin", "task=selective_copying", "train.batch_size=16"],
    },
    "griffin_4x1024": STEP
    | {
        "model": "griffin",
        "batch": 4,
        "length": 1024,
        "window": 512,
        "overrides": induction("griffin", 4, 1024, f"{WINDOW}=512"),
    },
}
PEERS = {
    "griffin_256": ("recurrentgemma", "transformers"),
    "hawk_256": ("recurrentgemma",),
    "mqa_256": ("recurrentgemma",),
    "griffin_copying_1040": ("recurrentgemma",),
    "griffin_4x1024": ("transformers",),
}
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
DECODED = {
    "250k_1": ("250k", 1, 16, 512),
    "250k_16": ("250k", 16, 16, 512),
    "250k_prefill": ("250k", 1, 4096, 1),
    "100m_1": ("100m", 1, 16, 64),
    "100m_16": ("100m", 16, 16, 32),
}


class Timed(NamedTuple):
    """Milliseconds of one step or call of each implementation, round by round, and what each said of itself."""

    ms: Mapping[str, Sequence[float]]
    facts: Mapping[str, dict[str, Any]]

    def ratio(self) -> dict[str, list[float]]:
        """Of each peer to ours, round by round."""
        return {
            who: [peer / ours for peer, ours in zip(taken, self.ms["ours"], strict=True)]
            for who, taken in self.ms.items()
            if who != "ours"
        }


def in_turn(what: str, peers: Sequence[str], case: dict[str, Any], given: argparse.Namespace) -> Timed:
    """Times `given.count` steps or calls of each implementation, one after the other, `given.rounds` times."""
    processes = {who: Process(who, what, given.environments, case) for who in ("ours", *peers)}
    try:
        times = {who: list[float]() for who in processes}
        for _ in range(given.rounds):
            for who, process in processes.items():
                times[who].append(process.times(given.count))
    finally:
        for process in processes.values():
            process.stop()
    return Timed(times, {who: process.facts for who, process in processes.items()})


def paired(pairs: Sequence[float]) -> str:
    """The median ratio and that of each round, as printed."""
    return f"   ratio {statistics.median(pairs):.2f}   pairs {'  '.join(f'{ratio:.2f}' for ratio in pairs)}"


def step(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The times of one case of training, round by round, and the ratio of each peer to ours."""
    timed = in_turn("step", PEERS[name], STEPS[name], given)
    ratio = timed.ratio()
    print(name)
    for who, taken in timed.ms.items():
        first = timed.facts[who]["first_step_s"]
        line = f"  {who:<16}{statistics.median(taken):8.1f} ms a step   first {first:5.1f} s"
        print(line + (paired(ratio[who]) if who in ratio else ""), flush=True)
    return {"case": name, "facts": timed.facts, "ms": timed.ms, "ratio": ratio}


def written(size: str, folder: Path) -> tuple[Path, int]:
    """A folder with that model's random weights as transformers reads them, and its vocabulary."""
    vocab_size, settings = SIZES[size]
    place = folder / size
    [sized] = chosen(settings)
    model = sized.built(vocab_size)
    export.write(place, model, jax.jit(model.init)(jax.random.key(0)), 1, None)
    return place, vocab_size


def decode(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The times of one case of decoding, the ratio of each peer to ours, and whether the tokens are the same."""
    size, rows, prompt, tokens = DECODED[name]
    with tempfile.TemporaryDirectory() as place:
        folder, vocab_size = written(size, Path(place))
        prompts = np.random.default_rng(0).integers(2, vocab_size, (rows, prompt))
        prompts[:, 0] = 1  # the token that begins every text
        case = {"folder": str(folder), "prompts": prompts.tolist(), "tokens": tokens}
        timed = in_turn("decode", tuple(PACKAGES), case, given)
    found = {who: np.asarray(facts.pop("tokens")) for who, facts in timed.facts.items()}
    ratio = timed.ratio()
    same = {who: float((found[who] == found["ours"]).mean()) for who in ratio}
    print(f"{name}: {rows} x {prompt} tokens in, {tokens} out")
    for who, taken in timed.ms.items():
        median = statistics.median(taken)
        line = f"  {who:<16}{median:10.1f} ms a call{rows * tokens / median * 1e3:12,.0f} tokens/s"
        print(line + (f"{paired(ratio[who])}   same tokens {same[who]:.1%}" if who in ratio else ""), flush=True)
    return {"case": name, "facts": timed.facts, "ms": timed.ms, "ratio": ratio, "same_tokens": same}


def setup(given: argparse.Namespace) -> None:
    """Makes a virtual environment for each peer, with the interpreter that runs this."""
    for name, packages in PACKAGES.items():
        place = given.environments / name
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)


TIMED = {"step": (step, STEPS, "--steps", 4), "decode": (decode, DECODED, "--calls", 2)}
"""By what is timed: the function of a case, the cases, and how many a round by which option."""


def compare(given: argparse.Namespace) -> None:
    """Times the cases that are named, or all, and writes what was found where it is asked for."""
    function, cases, _, _ = TIMED[given.what]
    unknown = sorted(set(given.cases) - set(cases))
    if unknown:
        sys.exit(f"unknown case {unknown[0]}; choose of {', '.join(cases)}")
    results = [function(name, given) for name in given.cases or cases]
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Reads the command line and does what it names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    for what, (function, cases, option, count) in TIMED.items():
        part = parts.add_parser(what, help=function.__doc__)
        part.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(cases)}; default: all")
        part.add_argument("--environments", type=Path, default=Path(".peers"))
        part.add_argument("--rounds", type=int, default=5)
        part.add_argument(option, type=int, default=count, dest="count", help="in each round")
        part.add_argument("--out", type=Path, help="also write the result as JSON")
        part.set_defaults(do=compare)
    part = parts.add_parser("setup", help=setup.__doc__)
    part.add_argument("environments", type=Path, nargs="?", default=Path(".peers"))
    part.set_defaults(do=setup)
    given = parser.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
