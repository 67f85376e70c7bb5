"""A peer's process, as the scripts that compare see it; `worker.py` is the other end."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


class Process:
    """One implementation, compiled and waiting: `<name>_<what>.py`, in the virtual environment `folder/<name>`."""

    def __init__(self, name: str, what: str, folder: Path, case: dict):
        python = sys.executable if name == "ours" else str(folder / name / "bin" / "python")
        if not Path(python).exists():
            raise SystemExit(f"{python} does not exist; run: bash benchmarks/peers/setup.sh {folder}")
        # transformers takes any module `kernels` that it finds for one of its own, so a peer does not see our folders.
        seen = {key: value for key, value in os.environ.items() if name == "ours" or key != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [python, str(HERE / f"{name}_{what}.py"), json.dumps(case)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=seen,
            text=True,
        )
        self.facts = self._read()

    def times(self, count: int) -> float:
        """Milliseconds of one of `count` steps or calls in a row."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self._read()["ms"]

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()

    def _read(self) -> dict:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.process.args} ended with code {self.process.wait()}")
