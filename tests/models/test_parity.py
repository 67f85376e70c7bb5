"""The same logits as transformers, from the same files, and back: needs the extra `parity`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.models.formats import export, released
from support.released_models import VOCABULARY, WINDOW, every_way, folder_of_griffin, griffin, tokens

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 160, "num_key_value_heads": 1}


def recurrent_gemma() -> Any:
    config = transformers.RecurrentGemmaConfig(
        **SIZES, num_hidden_layers=3, num_attention_heads=4, lru_width=96, attention_window_size=WINDOW
    )
    return transformers.RecurrentGemmaForCausalLM(config)


def gemma() -> Any:
    """More channels in its heads together than its width, as in Gemma 7B."""
    config = transformers.GemmaConfig(**SIZES, num_hidden_layers=2, num_attention_heads=4, head_dim=24)
    return transformers.GemmaForCausalLM(config)


def logits_of(model: Any):
    """What `model` says of rows without pads; it sees each anew."""

    def alone(given: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor(given), use_cache=False).logits.numpy()

    return alone


@pytest.fixture(scope="module", params=[recurrent_gemma, gemma], ids=["recurrentgemma", "gemma"])
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of transformers with every parameter away from where it starts, and its folder."""
    torch.manual_seed(0)
    model = request.param().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.5 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(torch.randn_like(parameter) * scale)
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    return model, folder


def test_logits_are_those_of_transformers_in_every_way_of_calling(theirs: tuple[Any, Path]) -> None:
    model, folder = theirs
    ours = released.hugging_face(folder, "float32")
    for name, got, wanted in every_way(ours.model, ours.read(), tokens(), logits_of(model)):
        assert np.ptp(wanted) > 1
        np.testing.assert_allclose(got, wanted, atol=TOLERANCE, rtol=0, err_msg=name)


def test_greedy_decoding_gives_the_same_tokens(theirs: tuple[Any, Path]) -> None:
    model, folder = theirs
    ours, prompt, new = released.hugging_face(folder, "float32"), tokens(2, 11), 13
    generated = model.generate(
        torch.tensor(prompt),
        attention_mask=torch.ones(prompt.shape, dtype=torch.long),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
    )
    params, apply, cache = ours.read(), jax.jit(ours.model.apply), ours.model.init_cache(2, 11 + new)
    given, said = jnp.asarray(prompt), []
    for _ in range(new):
        logits, cache = apply(params, given, None, cache)
        given = logits[:, -1:].at[..., 1].set(-jnp.inf).argmax(axis=-1)  # `min_new_tokens` forbids the end, 1
        said.append(given)
    np.testing.assert_array_equal(np.concatenate(said, axis=1), generated.numpy()[:, 11:])


def test_bfloat16_loads_matrices_as_such_and_stays_close(theirs: tuple[Any, Path]) -> None:
    model, folder = theirs
    ours = released.hugging_face(folder, "bfloat16")
    params = ours.read()
    assert params["embedding"]["table"].dtype == params["blocks"][0]["mlp"]["up"]["kernel"].dtype == jnp.bfloat16
    assert params["norm"]["scale"].dtype == jnp.float32
    logits, _ = jax.jit(ours.model.apply)(params, jnp.asarray(tokens()))
    assert np.abs(logits - logits_of(model)(tokens())).max() < 0.25


def test_several_files_and_a_head_that_is_tied_load_too(theirs: tuple[Any, Path], tmp_path: Path) -> None:
    """As the larger checkpoints are published: shards with an index, the head written out."""
    model, _ = theirs
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    head = {"lm_head.weight": model.lm_head.weight.detach().clone()}
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file(head, tmp_path / "head.safetensors", metadata={"format": "pt"})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        index.read_text().replace('"weight_map": {', '"weight_map": {"lm_head.weight": "head.safetensors",')
    )
    ours = released.hugging_face(tmp_path, "float32")
    logits, _ = jax.jit(ours.model.apply)(ours.read(), jnp.asarray(tokens()))
    np.testing.assert_allclose(logits, logits_of(model)(tokens()), atol=TOLERANCE, rtol=0)


def test_an_exported_model_says_the_same_in_transformers(tmp_path: Path) -> None:
    model, params = folder_of_griffin(tmp_path)
    theirs, notes = transformers.RecurrentGemmaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"]
    for name, got, wanted in every_way(model, params, tokens(), logits_of(theirs.eval())):
        np.testing.assert_allclose(got, wanted, atol=TOLERANCE, rtol=0, err_msg=name)


def test_a_pattern_that_does_not_repeat_is_exported_as_it_is(tmp_path: Path) -> None:
    model = griffin(pattern=["a", "r", "r", "a"])
    params = jax.jit(model.init)(jax.random.key(0))
    export.write(tmp_path, model, params, bos=2, eos=1)
    theirs = transformers.RecurrentGemmaForCausalLM.from_pretrained(tmp_path).eval()
    logits, _ = jax.jit(model.apply)(params, jnp.asarray(tokens()))
    np.testing.assert_allclose(logits, logits_of(theirs)(tokens()), atol=TOLERANCE, rtol=0)


def test_the_bytes_tokenizer_is_the_same_in_transformers(tmp_path: Path) -> None:
    from evalkit.checkpoints import tokenizer_files
    from evalkit.tasks.text.tokenizers import Bytes

    tokenizer_files.write_bytes(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Ada: 555-0199\n", "été 🐑 \x00\x7f  two  spaces", ""):
        assert theirs(text)["input_ids"] == [Bytes.bos, *Bytes().encode(text)]
        assert theirs.decode(Bytes().encode(text), clean_up_tokenization_spaces=False) == text
    assert (theirs.bos_token_id, theirs.eos_token_id) == (Bytes.bos, Bytes.eos)
