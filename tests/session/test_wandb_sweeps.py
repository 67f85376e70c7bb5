"""W&B's own agent with the YAML of `docs/sweeps.md`, against a server of ours: its runs are ours, with its values."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from support import servers, tiny

PAGE = tiny.ROOT / "docs" / "sweeps.md"
RATES = {"r1": 0.002}


class Sweeping(servers.Wandb):
    """A server that has one sweep: it gives one run after the other to the agent that asks, then none."""

    def __init__(self, sweep: dict[str, Any]) -> None:
        super().__init__()
        self.sweep, self.given, self.opened = sweep, list[str](), list[dict[str, Any]]()

    def body(self, path: str, question: bytes) -> Any:
        text = question.decode(errors="replace")
        if "SweepWithRuns" in text:
            return {
                "data": {"project": {"sweep": {"id": "s", "config": yaml.safe_dump(self.sweep), "runs": {"edges": []}}}}
            }
        if "createAgent" in text:
            return {"data": {"createAgent": {"agent": {"id": "a"}}}}
        if "agentHeartbeat" in text:
            running = json.loads(json.loads(text)["variables"]["runState"])
            left = [name for name in RATES if name not in self.given]
            commands = [] if running or not left else [self._command(left[0])]
            return {"data": {"agentHeartbeat": {"agent": {"id": "a"}, "commands": json.dumps(commands)}}}
        if "upsertbucket" in text.lower():
            self.opened.append(json.loads(text)["variables"])
        return super().body(path, question)

    def _command(self, name: str) -> dict[str, Any]:
        self.given.append(name)
        (parameter,) = self.sweep["parameters"]
        return {
            "type": "run",
            "run_id": name,
            "program": self.sweep["program"],
            "args": {parameter: {"value": RATES[name]}},
        }


def of_the_page() -> dict[str, Any]:
    """The sweep that the page shows."""
    block = re.search(r"```yaml\n(program: .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    assert len(block[1].splitlines()) == 5
    return yaml.safe_load(block[1])


@pytest.mark.slow
def test_the_agent_of_a_sweep_runs_the_yaml_of_the_page(tmp_path: Path) -> None:
    sweep = of_the_page()
    # The page's task and model are a tiny one here, whose folder is the test's.
    at = sweep["command"].index("${args_no_hyphens}")
    named = [word for word in sweep["command"][:at] if "=" not in word]
    small = [word for word in tiny.OVERRIDES if not word.startswith("wandb.")]
    sweep["command"] = [*named, *small, "train.steps=2", *sweep["command"][at:]]
    server = Sweeping(sweep)
    with servers.serving(server):
        environment = {
            **{name: value for name, value in tiny.environment().items() if not name.startswith("WANDB_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **{
                "WANDB_BASE_URL": server.url,
                "WANDB_API_KEY": "k" * 40,
                "WANDB_DIR": str(tmp_path),
                "HOME": str(tmp_path),
            },
        }
        agent = [sys.executable, "-m", "wandb", "agent", "me/evalkit/s1", "--count", str(len(RATES))]
        done = subprocess.run(
            agent, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=tiny.HANGS, check=False
        )
    assert done.returncode == 0, done.stderr
    runs = sorted((tmp_path / "runs").glob("*/*/*/config.yaml"), key=lambda path: path.stat().st_mtime_ns)
    assert [OmegaConf.load(path).train.learning_rate for path in runs] == list(RATES.values()), (
        done.stdout + done.stderr
    )
    assert all((path.parent / "results.json").is_file() for path in runs)
    # The server opened the runs that it gave, as runs of its sweep, and no others.
    assert {one.get("name") for one in server.opened if one.get("sweep") == "s1"} == set(RATES)
    assert {one.get("name") for one in server.opened} == set(RATES)
