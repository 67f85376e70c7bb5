"""Wrong programs for the campaign of faults, one an area: its tests must tell each from the right one.

`cd tests; python -m support.planted` tries them as `tests/support/mutations.py` tries its own, all or some by name. The
tests of an area lie in `tests/faults/`. Every one is marked `fault`. One that is too expensive for the default suite is
marked `slow` and `exhaustive` too: `-m fault` runs it, and the default suite a smaller case of the same property.
"""

import sys

from support.mutations import Mutation, main

PLANTED: tuple[Mutation, ...] = (
    Mutation(
        "a_package_that_names_itself",
        "evalkit/configuration/saved.py",
        '    admit(config, packages, f"{path}: ")',
        '    admit(config, [*packages, *config[ALLOW]], f"{path}: ")',
        "tests/faults/test_trust.py",
    ),
    Mutation(
        "a_tensor_before_its_file",
        "models/formats/safetensors.py",
        "if all(map(described.whole, numbers)) and last - first ==",
        "if last - first ==",
        "tests/faults/test_hostile_files.py",
    ),
)

if __name__ == "__main__":
    sys.exit(main(PLANTED, sys.argv[1:]))
