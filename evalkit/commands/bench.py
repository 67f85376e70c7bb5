"""`python -m evalkit bench WHAT [key=value …]` measures or counts; `format=json` ends with one JSON object."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from evalkit.commands.guide import Page


def main(arguments: Sequence[str]) -> int:
    """Measures, shows the result and returns 0; raises UserError for a setting that cannot be."""
    from evalkit.bench import measure
    from evalkit.bench.settings import OWN, PURPOSE, split

    defaults = {name: " ".join(_typed(key, value) for key, value in own.items()) for name, own in OWN.items()}
    what = "\n".join(f"  {name:<10} {text}\n{'':<13}{defaults[name]}" for name, text in PURPOSE.items())
    parser = Page(
        "bench",
        f"Measure, and say on what machine.\n\n{what}\n\n"
        "Every other key=value is the experiment's, of which scan and state have none; cost, steps, decode\n"
        "and throughput take model= and scale=, several with commas between them.\n"
        "kernel=NAME chooses the implementation of the recurrence that train measures.\n"
        "format=json ends with one JSON object.",
        "bench train task=induction_heads model=griffin",
        "bench scan longest=16384 format=json",
        "bench state batch=8 shortest=2048 longest=2048",
        "bench cost model=griffin,mqa scale=1b length=8192",
        "bench steps model=mqa,griffin 'lengths=[256,1024,4096]' tokens=4096",
        "bench decode scale=100m 'prefill=[0,4096]' 'tokens=[128,1024]' batch=16",
    )
    parser.add_argument("what", choices=list(OWN), help="what is measured")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="the bench's own, or the experiment's")
    parsed = parser.parse_args(arguments)
    settings, rest = split(parsed.what, parsed.settings)
    result, shape, quiet = measure.measure(parsed.what, settings, rest)
    measure.show(Console(stderr=shape == "json", quiet=quiet, highlight=False), result)
    if shape == "json":
        print(json.dumps(result), flush=True)
    return 0


def _typed(key: str, value: Any) -> str:
    """A setting as it is typed: a list in quotes, for the shell."""
    text = f"{key}={value}".replace(" ", "")
    return f"'{text}'" if isinstance(value, list) else text
