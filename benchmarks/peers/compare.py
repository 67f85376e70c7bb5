"""Times a training step of this project and of its peers in turn, and prints their ratio pair by pair.

    bash benchmarks/peers/setup.sh                # once: the peers' virtual environments
    python benchmarks/peers/compare.py            # all cases; or: griffin_256 mqa_256 --rounds 5 --out FILE

Every implementation is a process of its own that waits while another one is timed. Run it on an idle machine.
"""

import argparse
import json
import statistics
from pathlib import Path

from process import Process

STEP = {"batch": 32, "length": 256, "window": None, "scored": 1}


def induction(model: str, batch: int, length: int, *more: str) -> list[str]:
    """The overrides of one stage of induction heads at these sizes, trained as a peer is: without state passing."""
    sizes = [f"task.length={length}", f"train.batch_size={batch}", "train.state_passing=null", "train.average=null"]
    return [f"model={model}", "task=induction_heads", *sizes, *more]


WINDOW = "model.mixers.attention.window"
CASES = {
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
# The scan that is fastest there; its default takes a minute to compile and is no faster.
SCAN = "ASSOCIATIVE_NATIVE"


def compare(name: str, folder: Path, rounds: int, steps: int) -> dict:
    """The times of one case, round by round, and the ratio of each peer to ours."""
    processes = {who: Process(who, "step", folder, CASES[name] | {"scan": SCAN}) for who in ("ours", *PEERS[name])}
    try:
        times = {who: [] for who in processes}
        for _ in range(rounds):
            for who, process in processes.items():
                times[who].append(process.times(steps))
    finally:
        for process in processes.values():
            process.stop()
    result = {"case": name, "facts": {who: process.facts for who, process in processes.items()}, "ms": times}
    result["ratio"] = {
        who: [peer / ours for peer, ours in zip(times[who], times["ours"], strict=True)] for who in PEERS[name]
    }
    print(name)
    for who, taken in times.items():
        first = processes[who].facts["first_step_s"]
        pairs = result["ratio"].get(who, [])
        text = "  ".join(f"{ratio:.2f}" for ratio in pairs)
        mean = f"   ratio {statistics.median(pairs):.2f}   pairs {text}" if pairs else ""
        print(f"  {who:<16}{statistics.median(taken):8.1f} ms a step   first {first:5.1f} s{mean}", flush=True)
    return result


def main() -> None:
    """Reads the command line and times the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=Path, help="also write the result as JSON")
    given = parser.parse_args()
    unknown = sorted(set(given.cases) - set(CASES))
    if unknown:
        parser.error(f"unknown case {unknown[0]}; choose of {', '.join(CASES)}")
    results = [compare(name, given.environments, given.rounds, given.steps) for name in given.cases or CASES]
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
