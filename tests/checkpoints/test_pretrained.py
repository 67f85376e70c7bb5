"""Checkpoints that others released, and this project's own: what loads, how big it is, what is refused in one line."""

import json
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.errors
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from evalkit.__main__ import main
from evalkit.checkpoints import pretrained, tokenizer_files
from evalkit.core.errors import UserError
from evalkit.models.formats import export, gemma, recurrentgemma, recurrentgemma_flax, released, safetensors
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.tasks.text.tokenizers import Bytes, WithoutBos
from support import tiny
from support.released_models import (
    STEPS,
    VOCABULARY,
    WINDOW,
    every_way,
    folder_of_griffin,
    griffin,
    random_params,
    tiny_griffin,
    tokens,
)

RG_2B = {
    "model_type": "recurrent_gemma",
    "_block_types": ["recurrent", "recurrent", "attention"],
    "attention_bias": False,
    "attention_window_size": 2048,
    "conv1d_width": 4,
    "embeddings_scale_by_sqrt_dim": True,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2560,
    "intermediate_size": 15360,
    "logits_soft_cap": 30.0,
    "lru_width": 2560,
    "num_attention_heads": 10,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 256000,
}
RG_9B = RG_2B | {
    "hidden_size": 4096,
    "intermediate_size": 24576,
    "lru_width": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 38,
}
GEMMA_2B = {
    "model_type": "gemma",
    "hidden_act": "gelu",
    "hidden_activation": None,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 256000,
}


PUBLISHED = [
    pytest.param(RG_2B, 2_682_862_080, id="recurrentgemma 2b"),
    pytest.param(RG_9B, 8_579_977_216, id="recurrentgemma 9b"),
    pytest.param(GEMMA_2B, 2_506_172_416, id="gemma 2b"),
]


@pytest.mark.parametrize(("config", "count"), PUBLISHED)
def test_published_sizes(config: dict[str, Any], count: int) -> None:
    """The tensors that the parameters come from are as many numbers as were published."""
    tensors = gemma.tensors(config) if config is GEMMA_2B else recurrentgemma.tensors(recurrentgemma.parse(config))
    assert sum(int(np.prod(tensor.shape)) for tensor in tensors) == count


@pytest.mark.parametrize("config", [RG_2B, RG_9B, GEMMA_2B], ids=["recurrentgemma 2b", "recurrentgemma 9b", "gemma 2b"])
def test_every_parameter_has_one_tensor_of_its_shape(config: dict[str, Any]) -> None:
    """Of every kind of layer once: building all of them takes most of a minute."""
    check_tensors(config | {"num_hidden_layers": 3 if config["model_type"] == "recurrent_gemma" else 1})


@pytest.mark.exhaustive
@pytest.mark.parametrize(("config", "count"), PUBLISHED)
def test_every_parameter_of_every_layer_has_one_tensor_of_its_shape(config: dict[str, Any], count: int) -> None:
    shapes = check_tensors(config)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


def check_tensors(config: dict[str, Any]) -> Any:
    plan = released.ARCHITECTURES[config["model_type"]](config, "bfloat16")
    shapes = jax.eval_shape(plan.model.init, jax.random.key(0))
    wanted = {tuple(key.key for key in path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
    read = {t.path: t.layout.read(np.broadcast_to(np.float32(0), t.shape)).shape for t in plan.tensors}
    assert read == wanted and len(plan.tensors) == len(wanted)
    return shapes


def test_both_spellings_of_a_configuration_are_one() -> None:
    rope = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, "rope_type": "default"}
    dropped = ("_block_types", "rope_theta", "partial_rotary_factor")
    newer = {key: value for key, value in RG_2B.items() if key not in dropped}
    newer |= {"block_types": RG_2B["_block_types"], "rope_parameters": rope}
    parsed = recurrentgemma.parse(RG_2B)
    assert recurrentgemma.parse(newer) == parsed
    assert parsed.embedding_scale == 50.5  # sqrt(2560) = 50.596 in bfloat16
    assert parsed.pattern.count("attention") == 8 and parsed.mlp_width == 7680


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny RecurrentGemma without its tokenizer, which nobody may change."""
    folder = tmp_path_factory.mktemp("written")
    folder_of_griffin(folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(written, tmp_path, dirs_exist_ok=True))


def test_what_was_written_is_read_bit_for_bit(written: Path) -> None:
    found = released.find(written, "float32")
    assert found.model.window == WINDOW
    tiny.assert_identical(found.read(), tiny_griffin()[1])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_released_variant_is_one_model_in_every_way_of_calling() -> None:
    """The first token of a row is not scaled, wherever it stands and however it is given."""
    model, params = tiny_griffin()
    apply = jax.jit(model.apply)
    for name, got, wanted in every_way(model, params, tokens(), lambda given: apply(params, jnp.asarray(given))[0]):
        np.testing.assert_allclose(got, wanted, atol=2e-5, rtol=0, err_msg=name)
    scaled = griffin(recurrent={"unit_reset": False})
    assert np.abs(apply(params, tokens())[0] - jax.jit(scaled.apply)(params, tokens())[0]).max() > 0.01


def test_the_released_decay_starts_where_it_is_said_to() -> None:
    from flax import nnx

    block = RecurrentBlock(
        64, width_rnn=4096, gate_blocks=16, decay_power=2, decay_range=(0.81, 0.998001), rngs=nnx.Rngs(0)
    )
    a = np.asarray(jax.nn.sigmoid(block.rglru.decay[...]), np.float64)
    assert 0.9 <= a.min() < 0.901 and 0.998 < a.max() <= 0.99901
    assert abs((a**2).mean() - (0.81 + 0.998001) / 2) < 0.003


def changed(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Writes the tensors of `folder` again after `change`."""
    before = safetensors.SafeTensors(folder)
    tensors = {name: before.read(name) for name in before.shapes}
    change(tensors)
    shapes = {name: values.shape for name, values in tensors.items()}
    safetensors.write(folder / "model.safetensors", shapes, [lambda x=values: x for values in tensors.values()])


def configured(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


DECAY = "model.layers.0.temporal_block.rg_lru.recurrent_param"


def unread(self: object, name: str) -> np.ndarray:
    raise AssertionError(f"{name} was read")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: changed(folder, lambda tensors: tensors.pop(DECAY)), [DECAY, "missing"]),
        (
            lambda folder: changed(folder, lambda tensors: tensors.update({DECAY: np.zeros(7)})),
            [DECAY, "(7,)", "(96,)", "one checkpoint"],
        ),
        (
            lambda folder: changed(folder, lambda tensors: tensors.update({"model.q.bias": np.zeros(7)})),
            ["model.q.bias", "no place"],
        ),
        (cut, ["model.safetensors", "truncated", "download it again"]),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"abc"), ["truncated"]),
        (lambda folder: (folder / "model.safetensors").unlink(), ["neither model.safetensors nor"]),
        (lambda folder: configured(folder, model_type="llama"), ["'llama'", "recurrent_gemma, gemma"]),
        (lambda folder: configured(folder, num_key_value_heads=2), ["num_key_value_heads=2", "only 1"]),
        (lambda folder: configured(folder, hidden_activation="silu"), ["hidden_activation='silu'"]),
        (lambda folder: (folder / "config.json").write_text("{"), ["config.json", "not JSON"]),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "gemma"}'), ["num_attention_heads"]),
        (lambda folder: (folder / "config.json").unlink(), ["no checkpoints"]),
        (lambda folder: None, ["neither tokenizer.json nor tokenizer.model"]),
    ],
)
def test_a_damaged_or_foreign_checkpoint_is_one_line(
    folder: Path, harm: Callable[[Path], object], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that before anything is read of the weights."""
    harm(folder)
    with monkeypatch.context() as patched:
        patched.setattr(safetensors.SafeTensors, "read", unread)
        with pytest.raises(UserError) as refused:
            pretrained.load(str(folder))
    message = str(refused.value)
    assert message.startswith(f"checkpoint {folder}: ") and "\n" not in message
    assert all(word in message for word in words), message


def deepmind_tree(model_folder: Path) -> dict[str, Any]:
    """The tensors of a folder as DeepMind's Flax tree, by the inverse of the table that is read."""
    found = released.hugging_face(model_folder, "float32")
    params, tree = found.read(), {}
    config = recurrentgemma.parse(found.config)
    for tensor in recurrentgemma_flax.tensors(config):
        leaf: Any = params
        for key in tensor.path:
            leaf = leaf[key]
        *keys, last = tensor.name.split("/")
        node = tree
        for key in keys:
            node = node.setdefault(key, {})
        if "ffw_up" in keys:
            branch = 0 if "gate" in tensor.path else 1
            node.setdefault(last, np.zeros(tensor.shape, np.float32))[branch] = leaf
        else:
            node[last] = tensor.layout.write(np.asarray(leaf)).reshape(tensor.shape)
    return tree


def test_deepminds_orbax_checkpoint_gives_the_same_parameters(written: Path, tmp_path_factory) -> None:
    """Through files as its release has them: a folder with the checkpoint, keys with dots in them."""
    release = tmp_path_factory.mktemp("release")
    tree = deepmind_tree(written)
    assert "blocks.0" in tree and tree["blocks.0"]["mlp_block"]["ffw_up"]["b"].ndim == 4
    ocp.PyTreeCheckpointer().save(release / "2b", tree)
    found = released.find(release, "float32")
    assert found.model.window == 2049
    tiny.assert_identical(found.read(), tiny_griffin()[1])
    found = released.deepmind(release / "2b", "bfloat16", window=WINDOW)
    logits, _ = jax.jit(found.model.apply)(found.read(), jnp.asarray(tokens()))
    assert logits.shape == (3, STEPS, VOCABULARY) and np.isfinite(logits).all()


def test_an_orbax_checkpoint_without_a_tensor_is_one_line(written: Path, tmp_path_factory) -> None:
    release = tmp_path_factory.mktemp("release")
    tree = deepmind_tree(written)
    del tree["blocks.0"]["mlp_block"]["ffw_up"]["w"]
    ocp.PyTreeCheckpointer().save(release / "2b", tree)
    with pytest.raises(UserError, match=r"the tensor blocks\.0/mlp_block/ffw_up/w is missing or of another shape"):
        pretrained.load(str(release))


def test_the_identity_is_of_the_configuration_too(tmp_path: Path) -> None:
    """The same parameters with another window answer otherwise."""
    pytest.importorskip("tokenizers")
    model = griffin(vocab_size=258)
    export.write(tmp_path, model, random_params(model), bos=256, eos=257)
    tokenizer_files.write_bytes(tmp_path)
    held = [pretrained.load(str(tmp_path))]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"attention_window_size": WINDOW + 1}))
    held.append(pretrained.load(str(tmp_path)))
    assert held[0].digest == held[1].digest and held[0].identity != held[1].identity


def test_an_orbax_checkpoint_of_something_else_is_one_line(tmp_path: Path) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "other", {"dense": {"kernel": np.zeros((2, 3))}})
    with pytest.raises(UserError, match="it is no RecurrentGemma"):
        pretrained.load(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"recurrent": {"bias": False}}, "bias=true in its recurrent blocks"),
        ({"recurrent": {"unit_reset": False}}, "unit_reset=true"),
        ({"recurrent": {"gate_blocks": 8}}, "one number for heads and gate_blocks, this model 4, 8"),
        ({"attention": {"output_bias": False}}, "output_bias=true"),
        ({"attention": {"window": None}}, "a window"),
        ({"attention": {"rope": False}}, "rope=true"),
        ({"attention": {"rope_fraction": 1.0}}, "rope_fraction=0.5"),
        ({"attention": {"head_dim": 12}}, "heads x head_dim = width, 64"),
        ({"mlp_bias": False}, "mlp_bias=true"),
        ({"logits_soft_cap": None}, "a logits_soft_cap"),
        ({"embedding_scale": 1.0}, "embedding_scale=8 at width 64"),
    ],
)
def test_what_recurrentgemma_cannot_express_is_not_exported(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    model = griffin(**settings)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape), jax.eval_shape(model.init, jax.random.key(0)))
    with pytest.raises(ValueError, match="cannot be exported") as refused:
        export.write(tmp_path / "out", model, params, bos=None, eos=None)
    assert words in str(refused.value)
    assert not (tmp_path / "out").exists()


BYTES = ["model=griffin_released", "model.width=16", "model.embedding_scale=4"]
BYTES += ["model.mixers.recurrent.width_rnn=16", "model.mixers.attention.head_dim=4", "model.mlp_expansion=1"]


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_a_run_of_ours_is_exported_and_comes_back(tmp_path: Path) -> None:
    """Trained on as many tokens as bytes have, exported with its tokenizer, loaded as if it were RecurrentGemma."""
    run, out = tmp_path / "run", tmp_path / "out"
    small = [text for text in tiny.MODEL if "pattern" in text or "window" in text]
    overrides = [*tiny.TASK, *BYTES, *small, *tiny.TRAIN, *tiny.EVAL, "wandb.mode=disabled", "task.vocab_size=258"]
    overrides += ["train.steps=2", "eval.lengths=[32]"]

    assert tiny.start(run, of=overrides) == 0
    ours = pretrained.load(str(run))
    assert isinstance(ours.tokenizer, Bytes) and ours.train_length == 32 and ours.source == str(run)
    assert main(["export", str(run), str(out)]) == 0
    pytest.importorskip("tokenizers")
    theirs = pretrained.load(str(out))
    assert (theirs.tokenizer.bos, theirs.tokenizer.eos, theirs.tokenizer.vocab_size) == (256, 257, 258)
    tiny.assert_identical(theirs.params, ours.params)
    assert theirs.digest == ours.digest and len(ours.digest) == 64
    given = jnp.asarray([ours.tokenizer.encode("the same text")])
    said = [jax.jit(which.model.apply)(which.params, given)[0] for which in (theirs, ours)]
    np.testing.assert_array_equal(*said)
    assert main(["export", str(run), str(out)]) == 2  # it is not empty any more


def test_a_run_on_text_is_exported_with_its_tokenizer(tmp_path: Path) -> None:
    """It was trained without a token that begins a text, so that the exported tokenizer adds none."""
    pytest.importorskip("tokenizers")
    run = SimpleNamespace(tokenizer=WithoutBos(Bytes()), model=griffin(vocab_size=258))
    run.params = random_params(run.model)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pretrained, "load", lambda _: run)
        pretrained.export("run", tmp_path / "out")
    back = pretrained.load(str(tmp_path / "out"))
    text = "naïve\n"
    assert back.tokenizer.encode(text) == Bytes().encode(text)
    assert (back.tokenizer.bos, back.tokenizer.eos) == (None, Bytes.eos)


def test_the_bytes_tokenizer_comes_back_from_its_file(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    tokenizer_files.write_bytes(tmp_path)
    found = tokenizer_files.read(tmp_path, 258, {"eos_token_id": 257})
    text = "été 🐑 \x00\x7f  two  spaces\n"
    assert found.encode(text) == Bytes().encode(text) and found.decode(found.encode(text)) == text
    assert found.decode([256, *found.encode("a"), 257]) == "a"
    assert (found.bos, found.eos, found.vocab_size) == (256, 257, 258)


def test_every_token_that_may_end_a_text_is_known(tmp_path: Path) -> None:
    """An instruction-tuned Gemma ends a turn by another token than a text."""
    assert tokenizer_files.ends(tmp_path, 256, {"eos_token_id": 1}) == (1,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 107, 999]}')
    assert tokenizer_files.ends(tmp_path, 256, {"eos_token_id": [1, 106]}) == (1, 106, 107)
    (tmp_path / "generation_config.json").write_text("[")
    assert tokenizer_files.ends(tmp_path, 256, {}) == ()


@pytest.mark.parametrize("size", [257, 258 + 1025])
def test_a_tokenizer_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    pytest.importorskip("tokenizers")
    tokenizer_files.write_bytes(tmp_path)
    with pytest.raises(ValueError, match=f"has 258 tokens and the model {size}"):
        tokenizer_files.read(tmp_path, size, {})


def test_a_sentencepiece_file_is_read(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=60,
        hard_vocab_limit=False,
        bos_id=2,
        eos_id=1,
        pad_id=0,
        unk_id=3,
        minloglevel=2,
    )
    (tmp_path / "2b").mkdir()
    size = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model")).vocab_size()
    found = tokenizer_files.read(tmp_path / "2b", size + 128, {})  # beside the checkpoint's folder, as released
    assert (found.bos, found.eos, found.vocab_size) == (2, 1, size)
    assert found.decode([2, *found.encode("the lazy fox")]) == "the lazy fox" and 2 not in found.encode("the lazy fox")


@pytest.mark.parametrize("package", ["tokenizers", "sentencepiece"])
def test_a_missing_package_is_named(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"tokenizers": tokenizer_files.FAST, "sentencepiece": tokenizer_files.PIECES}[package]
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"pip install {package}"):
        tokenizer_files.read(tmp_path, 10, {})


def test_a_name_that_is_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="does not exist; give the folder of a run or a model, or owner/name on the hub"
    ):
        pretrained.load(str(tmp_path / "nothing"))


def test_a_silent_hub_is_waited_for_three_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that takes connections and never answers: worse than no network."""
    assert pretrained.ANSWER_SECONDS <= 3
    monkeypatch.setattr(pretrained, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(pretrained, "_cached", lambda name: None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        with pytest.raises(UserError) as refusal:
            pretrained.download("google/recurrentgemma-2b")
    message = str(refusal.value)
    assert endpoint in message and "does not answer" in message and "\n" not in message


@pytest.mark.parametrize(
    ("error", "words"),
    [("GatedRepoError", "is gated; accept its terms"), ("RepositoryNotFoundError", "is not at https:")],
)
def test_a_hub_that_says_no_is_one_line(error: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = getattr(huggingface_hub.errors, error)

    asked = []

    def refuse(self: object, name: str, repo_type: str) -> None:
        asked.append(name)
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", refuse)
    with pytest.raises(UserError, match=words):
        pretrained.download("google/recurrentgemma-2b")
    assert asked == ["google/recurrentgemma-2b"]
