"""Greedy decoding by this project, as `evalkit generate` decodes: prompts as tokens in, texts out."""

from pathlib import Path

import jax
import worker

from evalkit.core.contracts import Pretrained
from evalkit.inference.generation import generate
from evalkit.inference.texts import Said
from evalkit.models.formats import released
from evalkit.parallel import devices
from evalkit.tasks.text.tokenizers import Numbers

devices.spare_memory()
devices.use_every_core()
case = worker.case()
model, config, read = released.find(Path(case["folder"]), "float32")
pretrained = Pretrained(model, read(), Numbers(config["vocab_size"]), case["folder"], "", None)
texts: list[Said] = []


def take(calls: int) -> None:
    """That many calls, each with all prompts."""
    global texts
    for _ in range(calls):
        texts = generate(pretrained, case["prompts"], case["tokens"], batch_size=len(case["prompts"]))


worker.serve(
    take,
    sum(leaf.size for leaf in jax.tree.leaves(pretrained.params)),
    lambda: {"tokens": [list(said.tokens) for said in texts]},
)
