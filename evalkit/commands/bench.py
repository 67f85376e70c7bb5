"""`python -m evalkit bench train|evaluate|start|scan [key=value …]`; `format=json` ends with one JSON object."""

import argparse
import json
from collections.abc import Sequence

from rich.console import Console


def main(arguments: Sequence[str]) -> int:
    """Measures, shows the result and returns 0; raises UserError for a setting that cannot be."""
    from evalkit.bench import measure

    own = "; ".join(
        f"{name}: " + ", ".join(f"{k}={v}" for k, v in found.items()) for name, found in measure.OWN.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m evalkit bench",
        description="Measure. " + "; ".join(f"{name}: {text}" for name, text in measure.PURPOSE.items()) + ".",
        epilog=f"The bench's own settings and their defaults are {own}. Every other key=value is the experiment's, "
        "of which scan has none; kernel=NAME chooses the implementation of the recurrence that train measures.",
    )
    parser.add_argument("what", choices=list(measure.OWN))
    parser.add_argument("settings", nargs="*", metavar="key=value")
    given = parser.parse_args(arguments)
    settings, rest = measure.split(given.what, given.settings)
    result, shape = measure.measure(given.what, settings, rest)
    measure.show(Console(stderr=shape == "json", highlight=False), result)
    if shape == "json":
        print(json.dumps(result), flush=True)
    return 0
