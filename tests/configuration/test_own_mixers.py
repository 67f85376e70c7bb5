"""What goes wrong in a mixer's own file and YAML is one line, which names the file and what to do."""

import sys
from pathlib import Path

import pytest

from evalkit.__main__ import main
from evalkit.configuration.experiment import model_of
from evalkit.record.environment import changed_code
from support import tiny

MIXER = """
import jax.numpy as jnp
from flax import nnx

from evalkit.models.layers import Linear, scanned


class Mine(nnx.Module):
    window = None

    def __init__(self, width, *, rngs):
        self.width = width
        self.gate, self.value = Linear(width, width, rngs=rngs), Linear(width, width, rngs=rngs)

    def __call__(self, x, positions, cache):
        a = nnx.sigmoid(self.gate(x))
        h, last = scanned((1 - a) * self.value(x), a, positions, cache)
        return h, None if cache is None else last

    def init_cache(self, batch, length):
        return jnp.zeros((batch, self.width))
""".lstrip()
YAML = "_target_: {package}.mixer.Mine\n_partial_: true\n"
NAMED = "model.mixers.mixer._target_={package}.mixer.Mine cannot be imported: "


def begin(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, yaml: str = YAML) -> int:
    """Trains with `text` as the mixer's file, in a `package` that no other test has: what is imported stays."""
    for name, content in (("__init__.py", ""), ("mixer.py", text)):
        (folder / package).mkdir(exist_ok=True)
        (folder / package / name).write_text(content)
    (folder / "conf" / "mixer").mkdir(parents=True)
    (folder / "conf" / "mixer" / "mine.yaml").write_text(yaml.replace("{package}", package))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    words = ["task=induction_heads", "task.length=32", "+mixer=mine", "--config-dir", "conf"]
    model = ["model.width=8", "model.pattern=[mixer]"]
    rest = ["eval.lengths=[32]", *tiny.EVAL[1:], "wandb.mode=disabled", f"hydra.run.dir={folder / 'run'}"]
    return main([*words, *model, *tiny.TRAIN, *rest])


@pytest.mark.parametrize(
    ("number", "text", "told"),
    [
        (0, "class Mine(nnx.Module)\n    pass\n", NAMED + "SyntaxError: expected ':' (mixer.py:1)"),
        (1, "import no_such_one\n" + MIXER, NAMED + "No module named 'no_such_one' (mixer.py:1); install it"),
        (2, "width = Width()\n" + MIXER, NAMED + "NameError: name 'Width' is not defined (mixer.py:1)"),
        (3, "import sys\nsys.exit(0)\n" + MIXER, NAMED + "SystemExit: 0 (mixer.py:2)"),
        (4, MIXER.replace("class Mine", "class Other"), NAMED + "module '{package}.mixer' has no attribute 'Mine'"),
        (
            5,
            MIXER.replace("width, *,", "dim, *,").replace("= width", "= dim"),
            "takes dim, rngs; it is built with width and rngs, so",
        ),
        (6, MIXER.replace("cache(self, batch, length)", "cache(self, batch)"), "takes 2 positional arguments but 3"),
        (7, MIXER.replace("(batch, self.width)", "(batch, self.widht)"), "no attribute 'widht' (mixer.py:20)"),
        (8, MIXER.replace("self.value(x)", "self.valu(x)"), "model=mine breaks 'shapes': "),
        (9, MIXER.replace("return h, None", "return h[..., :4], None"), "it is added to what it was given, so give"),
    ],
)
def test_a_wrong_file_is_one_line(
    number: int,
    text: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package = f"wrong_file_{number}"
    assert begin(package, tmp_path, monkeypatch, text) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("evalkit: model") and told.replace("{package}", package) in said
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize(
    ("number", "yaml", "told"),
    [
        (
            0,
            "_target_: {package}.mixer.Mine\n",
            "gets width and rngs when it is built; add _partial_: true to its YAML",
        ),
        (1, "_taget_: {package}.mixer.Mine\n", "has no _target_; name what it builds, such as _target_: mine.Mixer"),
    ],
)
def test_a_wrong_yaml_is_one_line(
    number: int,
    yaml: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert begin(f"wrong_yaml_{number}", tmp_path, monkeypatch, MIXER, yaml) == 2
    assert capsys.readouterr().err == f"evalkit: model.mixers.mixer {told}\n"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("mixer=mine", "unknown key 'mixer'; give a mixer of your own as +mixer=NAME"),
        ("model=mine", "or give a mixer of your own as +mixer=NAME"),
    ],
)
def test_another_word_for_ones_own_mixer_says_which_is_right(
    word: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if word.startswith("model=") else ["model=hawk"]
    assert main(["task=induction_heads", *model, word]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_whose_code_was_changed_since_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin("changed", tmp_path, monkeypatch, MIXER) == 0
    again = ["evaluate", "run", "eval.lengths=[16]", "eval.sequences=4"]
    assert main(again) == 0
    assert "was changed since" not in capsys.readouterr().out
    file = tmp_path / "changed" / "mixer.py"
    file.write_text(MIXER.replace("return h, None", "return 0.5 * h, None"))
    assert main(again) == 0
    assert "note: changed.mixer was changed since run was trained" in " ".join(capsys.readouterr().out.split())
    facts = tmp_path / "run" / "environment.json"
    for damaged in ("[" * 100_000, "[]", '{"own_code": ["changed.mixer"]}', "{"):
        facts.write_text(damaged)
        assert changed_code(tmp_path / "run", {"changed.mixer": "another"}) is None
    file.write_text(MIXER.replace("rngs=rngs)\n", "rngs=rngs, bias=True)\n"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "changed"]:
        monkeypatch.delitem(sys.modules, name)
    assert main(again) == 2
    told = capsys.readouterr().err
    assert "is whole, but its parameters are not those of the model now" in told and "code was changed since" in told


def test_the_settings_of_another_model_may_be_called_mixers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no `_target_` is looked for among the mixers of `evalkit.models.build` alone."""
    (tmp_path / "another_model.py").write_text(
        "from evalkit.models import build\n"
        "from evalkit.models.mixers.linear_state import MatrixStateBlock\n\n\n"
        "def made(*, mixers, vocab_size):\n"
        "    block = lambda **given: MatrixStateBlock(heads=2, head_dim=4, **given)\n"
        "    return build(vocab_size=vocab_size, width=mixers['width'], pattern=['m'], mixers={'m': block})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    node = {"_target_": "another_model.made", "_partial_": True, "mixers": {"width": 8}}
    assert model_of(node, 16).vocab_size == 16
