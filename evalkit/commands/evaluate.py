"""`python -m evalkit evaluate RUN [key=value …]`, or `evaluate=RUN`."""

from collections.abc import Sequence

from evalkit.commands import resume

ABOUT = """\
Evaluate a run again, without training, into RUN/evaluate/<time>. RUN may be an archive.

What may be changed of it:
  eval.…          the settings of its evaluation; eval=… another evaluation
  task=… task.…   another task of the same vocabulary, at the length that the run was trained at
  data.path=…     other held-out text
  step=…          a checkpoint that was kept (train.keep_every); the newest if left out
  parameters=…    with train.average: average, or last
  wandb.…         where W&B gets it
  format=json     the last line of the output is one JSON object; quiet=true: nothing else but errors"""
EXAMPLES = (
    "evaluate RUN 'eval.lengths=[512,65536]'",
    "evaluate RUN eval=recall",
    "evaluate RUN task.trigger=prefix step=1000",
)


def main(arguments: Sequence[str]) -> int:
    """Evaluates a run again and returns the exit code; raises UserError if it cannot."""
    return resume.on_run("evaluate", arguments, ABOUT, EXAMPLES)
