"""`python -m evalkit lm-eval …`: lm-eval's own command with this project's models and tasks in it."""

from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Runs lm-eval's command and returns its exit code; raises UserError."""
    from evalkit.lm_eval import command

    return command.main(arguments)
