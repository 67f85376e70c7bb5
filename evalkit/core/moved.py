"""Names that have moved: what older runs' saved configurations call a constructor, and what it is called now."""

from collections.abc import Mapping
from typing import Any

MOVED: Mapping[str, str] = {
    "evalkit.downstream.benchmarks.Benchmarks": "evalkit.evaluations.downstream.benchmarks.Benchmarks",
    "evalkit.downstream.evaluation.Downstream": "evalkit.evaluations.downstream.measure.Downstream",
    "evalkit.evaluations.extrapolation.Extrapolation": "evalkit.evaluations.extrapolation.measure.Extrapolation",
    "evalkit.evaluations.loss_by_position.LossByPosition": "evalkit.evaluations.text.measure.LossByPosition",
    "evalkit.evaluations.phonebook.Lookup": "evalkit.evaluations.phonebook.measure.Lookup",
    "evalkit.evaluations.recall.Recall": "evalkit.evaluations.recall.measure.Recall",
    "evalkit.extrapolate.Extrapolation": "evalkit.evaluations.extrapolation.measure.Extrapolation",
    "evalkit.loss_by_position.LossByPosition": "evalkit.evaluations.text.measure.LossByPosition",
    "evalkit.recall.Recall": "evalkit.evaluations.recall.measure.Recall",
    "evalkit.record.tracking.WandbSettings": "evalkit.record.wandb.Wandb",
    "evalkit.tracking.WandbSettings": "evalkit.record.wandb.Wandb",
    "evalkit.train.Training": "evalkit.training.settings.Training",
    "models.attention.MQA": "evalkit.models.mixers.attention.MQA",
    "models.build": "evalkit.models.build",
    "models.cglru.ComplexRecurrentBlock": "evalkit.models.mixers.cglru.ComplexRecurrentBlock",
    "models.convex.ConvexRecurrentBlock": "evalkit.models.mixers.convex.ConvexRecurrentBlock",
    "models.lru.UngatedRecurrentBlock": "evalkit.models.mixers.lru.UngatedRecurrentBlock",
    "models.rglru.RecurrentBlock": "evalkit.models.mixers.rglru.RecurrentBlock",
    "models.s6.S6Block": "evalkit.models.mixers.s6.S6Block",
    "tasks.hub_documents.Hub": "evalkit.tasks.text.hub_documents.Hub",
    "tasks.induction_heads.InductionHeads": "evalkit.tasks.induction_heads.InductionHeads",
    "tasks.phonebook.Phonebook": "evalkit.tasks.phonebook.Phonebook",
    "tasks.phonebook_tokens.PhonebookTokens": "evalkit.tasks.phonebook_tokens.PhonebookTokens",
    "tasks.selective_copying.SelectiveCopying": "evalkit.tasks.selective_copying.SelectiveCopying",
    "tasks.text.Text": "evalkit.tasks.text.Text",
}
"""Exact old names of constructors, so that a user's own, such as `models.mine.Block`, stays what it is."""
KINDS: Mapping[str, str] = {
    "evalkit.reports.accuracy": "evalkit.evaluations.extrapolation.report",
    "evalkit.reports.benchmarks": "evalkit.evaluations.downstream.report",
    "evalkit.reports.phonebook": "evalkit.evaluations.phonebook.report",
    "evalkit.reports.recall": "evalkit.evaluations.recall.report",
    "evalkit.reports.text": "evalkit.evaluations.text.report",
}
"""What the headers of older runs call a kind of report, and what it is called now."""
ACCURACY, BENCHMARKS, PHONEBOOK, RECALL, TEXT = KINDS.values()
DROPPED: Mapping[str, frozenset[str]] = {
    "evalkit.evaluations.recall.measure.Recall": frozenset({"told_at", "first_check"}),
    "evalkit.evaluations.text.measure.LossByPosition": frozenset({"helped"}),
}
"""By the present name of a constructor, settings that it had and that no run ever changed."""


def renamed(content: Any) -> Any:
    """A saved configuration, as plain data, each constructor by its present name, without settings it no longer has.

    >>> renamed({"model": {"_target_": "models.build"}, "task": {"_target_": "tasks.mine.Task"}})
    {'model': {'_target_': 'evalkit.models.build'}, 'task': {'_target_': 'tasks.mine.Task'}}
    """
    if isinstance(content, Mapping):
        target = content.get("_target_")
        now = MOVED.get(target, target) if isinstance(target, str) else target
        dropped = DROPPED.get(now, frozenset()) if isinstance(now, str) else frozenset()
        return {k: now if k == "_target_" else renamed(value) for k, value in content.items() if k not in dropped}
    return [renamed(value) for value in content] if isinstance(content, list) else content
