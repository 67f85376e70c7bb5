"""One training step of this project, as a user's run takes it: the data made inside, several steps a dispatch."""

import jax
import worker

from evalkit.configuration.spec import Spec
from evalkit.parallel import devices
from evalkit.training.trainer import Trainer

devices.use_every_core()
case = worker.case()
built = Spec.of(case["overrides"]).experiment
jax.config.update("jax_default_matmul_precision", built.matmul_precision)
trainer = Trainer(built.task, built.model, built.train, [0])
state = trainer.init()
stage = built.train.stages(built.task.length)[-1]
tokens = stage.length + built.task.answer_length
assert (stage.batch_size, tokens) == (case["batch"], case["length"]), (stage, tokens)
assert built.model.window == case["window"], built.model.window


def take(steps: int) -> None:
    """That many steps in one dispatch, as a run takes them."""
    global state
    state, sums = trainer.advance(state, stage, steps)
    jax.block_until_ready(sums)


worker.serve(take, sum(leaf[0].size for leaf in jax.tree.leaves(state.params)))
