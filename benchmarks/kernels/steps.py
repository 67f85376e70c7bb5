"""Compiles the training program of a small model for an H200 that is not there, and counts its kernels by source.

    python steps.py griffin     the README's model, with state passing; likewise hawk

Fused computations are those of the program's text, products left out; compiled kernels are those of the whole program,
equal ones once. A step is one turn of the program's loop: its kernels are launches and copies.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from compile import DUMP, h200  # before JAX, which reads what it sets

# isort: split
import jax
import numpy as np
from jax.sharding import Mesh

from evalkit.models import build
from evalkit.models.mixers.attention import MQA
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.tasks.induction_heads import InductionHeads
from evalkit.training.settings import Training
from evalkit.training.trainer import Trainer

PATTERNS = {"griffin": "rrarr", "hawk": "rrrrr"}
LAUNCHED = {"fusion", "custom-call", "copy", "dot", "reduce", "sort", "scatter", "dynamic-update-slice"}
OPERATION = re.compile(r"%([\w.\-]+) = (?:\(.*?\)|\S+) ([a-z\-]+)\(")
SOURCES = {
    "backward": r"transpose\(jvp",
    "forward": r"jvp\(",
    "parameters cut from vectors": r"/split$",
    "streams": "closed_call",
}
"""By what in the name of an operation one sees where it comes from: the first that fits."""
REST = "optimiser, sums, resets"


def program(model: str) -> jax.stages.Lowered:
    """The steps of the README's model."""
    device = h200()  # before any other is looked at
    mixers = {"r": partial(RecurrentBlock, width_rnn=64), "a": partial(MQA, heads=4, head_dim=16, window=128)}
    pattern = PATTERNS[model]
    built = build(vocab_size=16, width=64, pattern=list(pattern), mixers={name: mixers[name] for name in set(pattern)})
    settings = Training(
        steps=3000, batch_size=16, learning_rate=4e-3, schedule="constant", state_passing=0.0625, average=0.999
    )
    trainer = Trainer(InductionHeads(length=256), built, settings, [0])
    trainer.placement.mesh = Mesh(np.asarray([device]), ("data",))
    return trainer.lower(trainer.training.stages(256)[-1])


def computations(text: str) -> dict[str, str]:
    """The text of each computation of a compiled program, by its name."""
    parts = (re.match(r"(?:ENTRY )?%([\w.\-]+) .*", part, re.DOTALL) for part in re.split(r"\n(?=%|ENTRY)", text))
    return {part[1]: part[0] for part in parts if part}


def launches(every: dict[str, str], name: str) -> Iterator[str]:
    """The lines of a computation, and of those that it calls, that are launches."""
    for line in every[name].splitlines():
        operation = OPERATION.search(line)
        if operation and operation[2] in LAUNCHED:
            yield line
        if operation and operation[2] in ("while", "conditional", "call"):
            called = re.findall(r"(?:body|to_apply|\w+_computation)=%([\w.\-]+)", line)
            for part in re.findall(r"branch_computations=\{(.*?)\}", line):
                called += re.findall(r"%([\w.\-]+)", part)
            for part in called:
                yield from launches(every, part)


def source(line: str) -> str:
    """Where an operation comes from."""
    name = re.search(r'op_name="(.*?)"', line)
    fitting = (source for source, pattern in SOURCES.items() if name and re.search(pattern, name[1]))
    return next(fitting, REST)


def main(model: str) -> None:
    """Prints the table of a model."""
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.default_backend = lambda: "gpu"  # which the trainer asks what suits the device
    text = program(model).compile().as_text() or ""
    every = computations(text)
    bodies = re.findall(r" while\(.*?body=%([\w.\-]+)", text)
    step = max((list(launches(every, body)) for body in bodies), key=len)
    made = sum(ptx.read_text().count(".entry") for ptx in Path(DUMP).glob("*_dispatch*.ptx"))
    fused = sum(name.startswith("fused") for name in every)
    print(f"| {model} | fused computations | {fused} |\n| {model} | compiled kernels | {made} |")
    for name, count in Counter(map(source, step)).most_common():
        print(f"| {model} | a step: {name} | {count} |")
    print(f"| {model} | a step | {len(step)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
