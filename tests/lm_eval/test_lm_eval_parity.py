"""The same tasks through lm-eval's `hf` backend and through ours, on one checkpoint: needs the extra `parity`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets.config
import pytest
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model

from evalkit.checkpoints.pretrained import export
from evalkit.core.rows import read
from evalkit.evaluations.downstream import data_sets as hub
from evalkit.lm_eval.model import EvalkitLM
from support import benchmark_data, tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TASKS = ["hellaswag", "piqa", "arc_easy", "winogrande", "mmlu_anatomy", "mmlu_anatomy_continuation"]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


@pytest.fixture(scope="module", params=["random", pytest.param("trained", marks=pytest.mark.exhaustive)])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RecurrentGemma on bytes, whose tokenizer begins every text: a random one, and one that was trained here."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return random_checkpoint(folder) if request.param == "random" else trained_checkpoint(folder)


def trained_checkpoint(folder: Path) -> Path:
    model = ["model=griffin_released", *tiny.MODEL[1:], tiny.TWO_BLOCKS, "model.embedding_scale=4"]
    train = [*tiny.TRAIN, "train.steps=150", "train.learning_rate=1e-2", "task.vocab_size=258"]
    task = ["task=phonebook", "task.length=40"]  # whose answers are digits, which is soon learned
    overrides = [
        *task,
        *model,
        *train,
        "eval.lengths=[40]",
        "eval.sequences=4",
        "eval.during=[]",
        "wandb.mode=disabled",
    ]
    assert tiny.start(folder / "run", of=overrides) == 0
    losses = [entry["total"] / entry["count"] for entry in read(folder / "run").rows if entry["split"] == "train"]
    assert losses[-1] < 0.6 * losses[0]
    export(str(folder / "run"), folder / "exported")
    return folder / "exported"


def random_checkpoint(folder: Path) -> Path:
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        lru_width=64,
        attention_window_size=32,
        bos_token_id=2,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = transformers.RecurrentGemmaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 * parameter.shape[-1] ** -0.5))
    model.save_pretrained(folder)
    return folder


def byte_tokenizer() -> Any:
    """A token a byte, in the file format of transformers."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<eos>", "<bos>", *alphabet]
    fast = tokenizers.Tokenizer(tokenizers.models.BPE({name: number for number, name in enumerate(names)}, []))
    fast.add_special_tokens(names[:3])
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = tokenizers.decoders.ByteLevel()
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )


def answers(index: Any, model: LM) -> dict[str, list[tuple[float, bool]]]:
    """Every request's log-likelihood and greedy flag, by task."""
    loaded = index.load(TASKS)["tasks"]
    requests = {}
    for name, task in loaded.items():
        task.set_config("num_fewshot", 2 if name.startswith("mmlu") else 0)
        task.set_fewshot_seed(1234)
        task.build_all_requests()
        requests[name] = task.instances
    return {name: model.loglikelihood(found) for name, found in requests.items()}


@pytest.mark.filterwarnings("default")  # those of torch and transformers are not ours to mend
def test_the_hf_backend_and_ours_give_the_same_answers(checkpoint: Path, tmp_path: Path) -> None:
    data = benchmark_data.write(tmp_path / "data")
    local = tmp_path / "local"
    local.mkdir()
    index = hub.manager(TASKS, {})
    hub.localise(index, hub.needed(index, TASKS), data, local)
    index = hub.manager(TASKS, {}, [local])
    hf = get_model("hf")
    theirs = answers(index, hf(pretrained=str(checkpoint), dtype="float32", device="cpu", max_length=4096))
    for share in (True, False):
        ours = answers(index, EvalkitLM(str(checkpoint), share_prefixes=share, chunk=64))
        for task in TASKS:
            assert len(ours[task]) == len(theirs[task])
            for mine, wanted in zip(ours[task], theirs[task], strict=True):
                assert mine[0] == pytest.approx(wanted[0], abs=1e-4)
                assert mine[1] == wanted[1]


@pytest.mark.filterwarnings("default")  # those of torch and transformers are not ours to mend
def test_needles_are_found_alike_by_the_hf_backend_and_ours(checkpoint: Path) -> None:
    """Whatever a model says to a prompt, which for a random one is anything, it says through both."""
    index = hub.manager(["griffin_needle"], {"sentences": [3, 9], "prompts": 3, "keys": 2})
    task = index.load(["griffin_needle"])["tasks"]["griffin_needle"]
    task.set_config("generation_kwargs", {"until": ["\n"], "max_gen_toks": 16, "do_sample": False})
    task.build_all_requests()
    hf = get_model("hf")(pretrained=str(checkpoint), dtype="float32", device="cpu", max_length=4096)
    theirs = hf.generate_until(task.instances)
    ours = EvalkitLM(str(checkpoint), chunk=64).generate_until(task.instances)
    assert len(ours) == 6 and ours == theirs
    scores = [
        [task.process_results(each.doc, [said]) for each, said in zip(task.instances, all_said, strict=True)]
        for all_said in (ours, theirs)
    ]
    assert scores[0] == scores[1] and "found@9" in scores[0][-1]
