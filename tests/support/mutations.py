"""Wrong programs, five a package and one for each area of faults: the tests must tell each from the right one.

The twenty of the packages were chosen from the code alone, before tests were merged in 2026-11.
`python tests/support/mutations.py` copies the repository, puts one mistake at a time into the copy and runs the tests
of that subject until one fails:

    python tests/support/mutations.py                  # the twenty, two at a time
    python tests/support/mutations.py wrong_window     # some, by name
    python tests/support/mutations.py --faults         # those of the campaign of faults, all or some by name

It ends with 1 if a mistake is not found.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
AT_ONCE = 2


@dataclass(frozen=True)
class Mutation:
    """One mistake: `right` stands once in `file` and becomes `wrong`; `tests` are those of its subject."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str


MUTATIONS = (
    Mutation(
        "swapped_gate",
        "kernels/passes.py",
        "scaled(gates.scale * gates.i, x)",
        "scaled(gates.scale * gates.r, x)",
        "tests/kernels",
    ),
    Mutation(
        "state_enters_at_the_wrong_end",
        "kernels/xla.py",
        "first = -1 if reverse else 0\n    # The",
        "first = 0\n    # The",
        "tests/kernels",
    ),
    Mutation(
        "gradient_without_reset",
        "kernels/passes.py",
        "per_channel[0], without(da[0], reset), g[0])",
        "per_channel[0], da[0], g[0])",
        "tests/kernels",
    ),
    Mutation(
        "gradient_without_conjugate",
        "kernels/passes.py",
        "return conjugate(a), times(conjugate(a), float32(dh))",
        "return a, times(a, float32(dh))",
        "tests/kernels",
    ),
    Mutation(
        "shards_shifted_the_wrong_way",
        "kernels/sharded.py",
        "return g, g * _shift(h, h0, axis, reverse), dh0",
        "return g, g * _shift(h, h0, axis, not reverse), dh0",
        "tests/kernels",
    ),
    Mutation(
        "wrong_window",
        "models/mixers/attention.py",
        "visible &= distance < window",
        "visible &= distance <= window",
        "tests/models",
    ),
    Mutation(
        "segments_along_the_batch",
        "models/mixers/attention.py",
        "segments = segments + jnp.cumsum(positions == 0, axis=1)",
        "segments = segments + jnp.cumsum(positions == 0, axis=0)",
        "tests/models",
    ),
    Mutation(
        "recurrence_without_reset",
        "models/mixers/rglru.py",
        "CLOSED, recurrence), positions == 0",
        "CLOSED, recurrence), None",
        "tests/models",
    ),
    Mutation(
        "convolution_across_documents",
        "models/layers/modules.py",
        "y = y + jnp.where(same[..., None], scaled(inputs[:, tap : tap + steps], kernel[tap]), 0)",
        "y = y + scaled(inputs[:, tap : tap + steps], kernel[tap]) + 0 * same[..., None]",
        "tests/models",
    ),
    Mutation(
        "gelu_on_the_wrong_branch",
        "models/layers/modules.py",
        "gelu_times(self.gate(x), self.up(x))",
        "gelu_times(self.up(x), self.gate(x))",
        "tests/models tests/checkpoints",
    ),
    Mutation(
        "answer_is_the_query",
        "tasks/induction_heads.py",
        'if self.trigger == "prefix" else length) - 3',
        'if self.trigger == "prefix" else length) - 2',
        "tests/tasks",
    ),
    Mutation(
        "data_out_of_order",
        "tasks/selective_copying.py",
        ".at[jnp.sort(places)].set(data)",
        ".at[places].set(data)",
        "tests/tasks",
    ),
    Mutation(
        "names_repeat",
        "tasks/base.py",
        "jnp.where(taken, ends[index], draws[index])",
        "jnp.where(taken, draws[index], draws[index])",
        "tests/tasks",
    ),
    Mutation(
        "predicted_across_documents",
        "tasks/text/corpus.py",
        "within[:, 1:] > 0, positions",
        "within[:, 1:] >= 0, positions",
        "tests/tasks",
    ),
    Mutation(
        "window_reaches_past_the_end",
        "tasks/text/corpus.py",
        "        return self.total - length\n",
        "        return self.total - length + 1\n",
        "tests/tasks",
    ),
    Mutation(
        "padding_is_a_token",
        "evalkit/inference/streaming.py",
        "None if example.positions is None else -1)",
        "None if example.positions is None else 0)",
        "tests/inference tests/evaluations",
    ),
    Mutation(
        "interval_too_wide",
        "evalkit/core/statistics.py",
        "z * z / (4 * count * count)",
        "z * z / (4 * count)",
        "tests/core",
    ),
    Mutation(
        "last_batch_counted_whole",
        "evalkit/evaluations/extrapolation/measure.py",
        "used = min(rows, left)",
        "used = min(rows, left + done)",
        "tests/evaluations",
    ),
    Mutation(
        "gradient_not_divided",
        "evalkit/training/step.py",
        "lambda leaf: leaf / batch, gradient",
        "lambda leaf: leaf, gradient",
        "tests/training",
    ),
    Mutation(
        "drawn_alike_for_all_prompts",
        "evalkit/inference/sampling.py",
        "jax.random.fold_in(jax.random.fold_in(key, row), step)",
        "jax.random.fold_in(key, step)",
        "tests/inference",
    ),
)

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
"""Of the campaign of faults, one an area: the tests of an area lie in `tests/faults/`.

Every one is marked `fault`. One that is too expensive for the default suite is marked `slow` and `exhaustive` too:
`-m fault` runs it, and the default suite a smaller case of the same property.
"""


WITH_SLOW = "not kernels and not exhaustive"


def found_by(mutation: Mutation) -> str | None:
    """The first test that fails with this mistake in a copy of the repository; None if all pass."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "evalkit"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(copy)], check=True)
        file = copy / mutation.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutation.right) != 1:
            raise ValueError(f"{mutation.name}: {mutation.right!r} stands {text.count(mutation.right)} times, not once")
        file.write_text(text.replace(mutation.right, mutation.wrong), encoding="utf-8")
        tests = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-m",
            WITH_SLOW,
            *mutation.tests.split(),
        ]
        ended = subprocess.run(tests, cwd=copy, capture_output=True, text=True, check=False)
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if ended.returncode == 1 and failed:
        return failed[0].split(" - ")[0]
    if ended.returncode == 0:
        return None
    raise RuntimeError(f"{mutation.name}: pytest ended with {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr}")


def main(mutations: Sequence[Mutation], names: list[str]) -> int:
    """Prints who finds each mistake, or each of those with `names`; returns 1 if one is found by nobody."""
    unknown = set(names) - {mutation.name for mutation in mutations}
    if unknown:
        raise SystemExit(f"no mistake is called {', '.join(sorted(unknown))}; see {__file__}")
    chosen = [mutation for mutation in mutations if not names or mutation.name in names]
    missed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutation, test in zip(chosen, pool.map(found_by, chosen), strict=True):
            missed += test is None
            print(f"{mutation.name:32} {test or 'FOUND BY NO TEST'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--faults"]
    sys.exit(main(PLANTED if "--faults" in sys.argv else MUTATIONS, words))
