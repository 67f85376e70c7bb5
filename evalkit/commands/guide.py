"""What a bare `python -m evalkit` says: what there is to choose, and the commands to start with."""

from evalkit.configuration import catalogue

COMMANDS = """\
Commands
  python -m evalkit task=induction_heads model=griffin
      generate, train, evaluate at lengths up to 64 times as long, log, report
  python -m evalkit evaluate=RUN eval.lengths=[512,65536]
      evaluate a run again at other lengths (resume=RUN goes on with one that was stopped)
  python -m evalkit compare RUN RUN RUN
      the curves of several runs in one figure

Benchmarks of lm-eval on a checkpoint: python -m evalkit task=downstream checkpoint=RUN task.names=[piqa]
Any setting is key=value: seeds=3, train.steps=2000, model.width=128, format=json; -m model=mqa,hawk,griffin runs each.
All settings: python -m evalkit --cfg job task=induction_heads model=griffin
A task's own example, decoded: python -m evalkit example NAME"""


def text() -> str:
    """The guide; nothing heavy is imported for it."""
    groups = (("Tasks", "task"), ("Models", "model"), ("Presets", "preset"))
    parts = ["Does a model trained on 256 tokens still work on 16,384? Train it at one length, measure it at others."]
    parts += [f"{title} ({group}=…)\n" + "\n".join(_options(group)) for title, group in groups]
    return "\n\n".join([*parts, COMMANDS])


def _options(group: str) -> list[str]:
    return [f"  {option:<18} {catalogue.headline(group, option)}" for option in catalogue.options(group)]
