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
        'admitted(plain, packages, f"{path}: ")',
        'admitted(plain, [*packages, *plain[ALLOW]], f"{path}: ")',
        "tests/faults/test_trust.py",
    ),
    Mutation(
        "a_tensor_before_its_file",
        "models/formats/safetensors.py",
        "if all(map(described.whole, numbers)) and last - first ==",
        "if last - first ==",
        "tests/faults/test_hostile_files.py",
    ),
    Mutation(
        "rows_of_a_killed_attempt_stay",
        "evalkit/core/rows.py",
        "self.offset = _complete(data[:offset])",
        "self.offset = _complete(data)",
        "tests/faults/test_kill.py",
    ),
    Mutation(
        "sums_are_not_looked_at",
        "evalkit/training/checkpoints.py",
        "summed = _summed(folder)",
        "summed = True",
        "tests/faults/test_rot.py",
    ),
    Mutation(
        "older_checkpoints_go_first",
        "evalkit/training/checkpoints.py",
        "            self.tidy()\n            with _SAVING",
        "            self.tidy()\n            [self._remove(old) for old in self.steps]\n            with _SAVING",
        "tests/faults/test_disk.py",
    ),
    Mutation(
        "nobody_waits_for_tokens",
        "tasks/text/corpus.py",
        'waiting for it", place)\n        lock.acquire()',
        'waiting for it", place)',
        "tests/faults/test_at_once.py",
    ),
    Mutation(
        "a_handle_for_every_checkpoint",
        "evalkit/core/rows.py",
        "os.fsync(self._file.fileno())",
        "os.fsync(os.dup(self._file.fileno()))",
        "tests/faults/test_soak.py",
    ),
    Mutation(
        "a_hub_that_refuses_is_silent",
        "evalkit/core/network.py",
        "    except (RepositoryNotFoundError, HfHubHTTPError) as error:\n",
        "    except RepositoryNotFoundError as error:\n",
        "tests/faults/test_network.py",
    ),
    Mutation(
        "a_skipped_step_is_taken",
        "evalkit/training/step.py",
        "jnp.where(bad, old, new)",
        "jnp.where(bad, new, new)",
        "tests/faults/test_numbers.py",
    ),
)

if __name__ == "__main__":
    sys.exit(main(PLANTED, sys.argv[1:]))
