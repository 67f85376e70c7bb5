"""Wrong command lines of every verb: each is one line on stderr, no traceback, and nothing is written."""

import shlex
import shutil
from pathlib import Path

import pytest

from evalkit.__main__ import main
from evalkit.configuration import saved
from evalkit.session import run
from support import tiny

IN_DEFAULT = 10
"""Every so many lines are in the default suite; `test_config` and `test_cli` hold what is said of each mistake."""
G = "task=induction_heads model=griffin"
LINES = f"""
comapre a b
trian
help
list
check
check {G} lr=1
{G} dry_run=true
--config-dir . --config-dir run {G}
check task=induction_heads
check {G} checkpoint=runs/nothing
check {G} --nope
rows
rows runs/nothing
rows csv=out.csv
-x
--verison
--config-dir
--config-dir nowhere
--config-dir nowhere example
--config-dir=nowhere {G}
task
task=induction_heads
model=griffin
task=inductionheads model=griffin
task=induction_heads model=grifin
task= model=griffin
task=null model=griffin
task=induction_heads modle=griffin
tsk=induction_heads model=griffin
task=induction_heads,books model=griffin
task=[induction_heads] model=griffin
{G} preset=tiny
{G} preset=null
{G} eval=accuracy
{G} eval=downstream
{G} eval=lookup
{G} eval=loss_by_position
{G} lr=1e-3
{G} train.lr=1e-3
{G} learning_rate=1e-3
{G} batch_size=8
{G} epochs=10
{G} n_layers=4
{G} dropout=0.1
{G} model.dropout=0.1
{G} device=cuda
{G} gpus=2
{G} output_dir=out
{G} optimizer=sgd
{G} wandb.nme=mine
{G} seed=-1
{G} seed=1.5
{G} seed=one
{G} seeds=0
{G} seeds=4000000000
{G} seed=1,2
{G} train.steps=0
{G} train.steps=-5
{G} train.steps=1e3
{G} train.steps=ten
{G} train.steps=null
{G} train.steps=[5]
{G} train.steps=
{G} train.steps
{G} ~train.steps
{G} ~train
{G} ~model
{G} ~nothing
{G} ~train.steps=5
{G} train=null
{G} train=fast
{G} train.learning_rate=0
{G} train.learning_rate=nan
{G} train.learning_rate=fast
{G} train.batch_size=0
{G} train.batch_size=1000000000000
{G} train.schedule=linear
{G} train.warmup_steps=-1
{G} train.warmup_steps=5000
{G} train.eval_every=30
{G} train.checkpoint_every=7
{G} train.keep_every=150
{G} train.log_every=0
{G} train.clip=0
{G} train.weight_decay=-1
{G} train.microbatch=0
{G} train.stop_when_solved=0
{G} 'train.curriculum=[{{length: 512, steps: 5, batch_size: 2}}]'
{G} 'train.curriculum=[{{length: 64}}]'
{G} 'train.curriculum=[64]'
{G} train.curriculum=64
{G} 'train.lengths=[1,40]'
{G} 'train.lengths=[300,256]'
{G} 'train.lengths=[a,b]'
{G} eval.span=0
task=books model=hawk 'train.lengths=[8,512]'
task=mqar model=hawk task.pairs=20
task=state_tracking model=hawk task.group=s4
task=copying model=hawk task.length=33
{G} train.steps=600
{G} train.average=1
{G} train.optimizer=sgd
{G} train.label_smoothing=1
{G} parameters=first
task=phonebook checkpoint=run parameters=last
{G} model.mixers.recurrent.conv_init=0
{G} task.length=0
{G} task.length=2
{G} task.length=100000000
{G} task.lenght=64
{G} task.vocab_size=1
{G} task.trigger=late
{G} task._target_=nowhere.Task
{G} task._target_=evalkit.training.settings.Training
{G} model.width=0
{G} model.mixers.recurrent.width_rnn=65
{G} model.width=10000000
{G} 'model.pattern=[]'
{G} 'model.pattern=[recurrent,conv]'
{G} model.pattern=recurrent
{G} model.mixers.recurrent.gate_blocks=7
{G} model.mixers.recurrent.conv_width=0
{G} model.mixers.attention.window=0
{G} model.mixers.attention.heads=0
{G} model.mixers.attention.head_dim=3
{G} model.mixers.attenton.window=8
{G} model.dtype=float16
{G} model.mlp_expansion=-1
{G} 'eval.lengths=[]'
{G} eval.lengths=512
{G} 'eval.lengths=[0]'
{G} 'eval.lengths=[64,x]'
{G} 'eval.lengths=[99999999999]'
{G} 'eval.lengths=[64'
{G} eval.length=512
{G} eval.chunk=0
{G} eval.batch_size=0
{G} eval.sequences=0
{G} eval.interval=2
{G} eval.reset_every=0
{G} format=xml
{G} format=json,text
{G} quiet=maybe
{G} matmul_precision=low
{G} dtype=bfloat16
{G} dtype=int8
{G} data.path=/nope
{G} data.pth=/nope
{G} hydra.sweep.dir=x
{G} hydra.verbose=true
{G} hydra.rundir=x
{G} hydra.job.chdir=true
{G} recipe=mine
{G} task_name=x
{G} paper.length=3
{G} +seeeds=2
{G} ++train.stepz=2
{G} +modl=hawk
{G} 'a b=c'
{G} train.steps=${{nothing}}
{G} train.steps='${{oc.env:NOT_SET_ANYWHERE}}'
{G} --fast
{G} -p train
{G} --resolve
{G} --config-name other
{G} --multirn
-m {G} train.stepz=1,2
-m task=induction_heads model=griffin,retnet
-m {G} hydra.sweep.dr=x
-m {G} train.steps=0,5
-m experiment=fig6b seed=1,2
--cfg {G}
--cfg nothing {G}
--cfg job
--cfg job {G} nope=1
--cfg job -p train.stepz {G}
--cfg job -p nothing {G}
--cfg hydra -p hydra.rn {G}
--info all task=nope
experiment=fig99
experiment=fig6b preset=nope
experiment=fig6b train.stepz=4
experiment=fig6b hydra.sweep.dir=x
experiment=null
task=books model=griffin data.path=/nope
task=books model=mqa task.tokenizer=gpt2
task=books model=mqa task.tokenizer=gone.json
task=books model=mqa task.train=a.txt
task=books model=mqa task.held_out=/x/book[23].txt
task=books model=mqa task.validation=0
task=books model=mqa data.path=a task.train=b task.held_out=c
task=books model=mqa eval=extrapolation
task=books model=mqa task.length=0
task=selective_copying model=mqa task.data_tokens=5000
task=phonebook checkpoint=
task=downstream
task=downstream checkpoint=run 'task.names=[]'
task=books checkpoint=run preset=cpu
task=books checkpoint=run model=griffin
task=books checkpoint=run train.steps=5
task=books checkpoint=run seeds=3
task=induction_heads checkpoint=run
checkpoint=run
task=phonebook checkpoint=nowhere/at-all-that-is
task=phonebook checkpoint=run dtype=float16
task=phonebook checkpoint=run task.variant=mine
task=phonebook checkpoint=run 'eval.lengths=[]'
task=phonebook checkpoint=run 'eval.lengths=[99999999999]'
resume
resume nowhere
resume=nowhere
resume=
resume .
resume run train.stepz=5
resume run train.steps=many
resume run model.width=32
resume run model=hawk
resume run task.length=64
resume run -m seed=1,2
resume=run evaluate=run
resume run ~train.steps
resume run 'eval.lengths=[]'
resume train.steps=5
evaluate
evaluate nowhere
evaluate=nowhere 'eval.lengths=[8]'
evaluate run
evaluate run step=last
evaluate run step=2 step=4
evaluate run train.steps=5
evaluate run task.length=64
evaluate run eval.lenghts=[64]
evaluate run 'eval.lengths=[]'
evaluate run 'eval.lengths=[99999999999]'
evaluate run task=books
evaluate run task=nope
evaluate run eval=nope
evaluate run format=xml
evaluate run hydra.run.dir=x
evaluate run --cfg hydra
compare
compare nowhere
compare run
compare nowhere --out
compare run --ot x
example nope
example induction_heads triger=fixed
example induction_heads trigger=late
example induction_heads length=2
example induction_heads length=long
example induction_heads seed=-1
example induction_heads length=999999999999
example induction_heads 5
example books path=/nope
bench
bench fly
bench train
bench train {G} repeats=0
bench train {G} kernel=cuda
bench train {G} stepz=4
bench evaluate {G} length=many
bench scan task=induction_heads
bench scan width=0
bench cost length=0
bench decode model=hawk tokens=4
bench decode model=hawk batch=999999999999
bench throughput model=hawk memory_gb=0
bench throughput task=books
bench cost model=hawk task=books
bench cost model=mamba scale=1b
bench cost model=hawk scale=2b
bench cost model=hawk mesh=eight
bench cost model=hawk 'mesh={{data: 1.5, model: 2}}'
bench cost model=hawk gather=never
bench cost model=hawk 'mesh={{data: 1, model: 5}}'
{G} scale=2b
task=induction_heads model=mamba scale=1b
{G} model.depth=0
generate
generate run
generate run '' tokens=3
generate run 'a b' 'c d'
generate run 'a b' sampler=beam
generate run 'a b' top_p=0
generate run 'a b' top_k=3
generate run 'a b' temperature=1 seed=3000000000
generate run tokens=5 'a b'
generate run 'a b' tokens=many
generate run 'a b' dtype=int8
generate run 'a b' stop_tokens=16
generate run 'a zz'
generate run file=nowhere.txt
generate run file=nowhere.txt 'a b'
generate nowhere 'a b'
export
export run
export nowhere out
export run out extra
archive nowhere out
archive run
archive run out
archive run out --step last
select nowhere
select .
select run --level 2
calibrate
calibrate gpt-5 results.json
calibrate gemma-2b nowhere.json
lm-eval fly
lm-eval run --tasks nope
lm-eval run --tsks piqa
lm-eval run --model evalkit
lm-eval run --model evalkit --model_args pretrained=nowhere --tasks griffin_phonebook --data_path
lm-eval ls everything
{G} ~wandb
{G} +lr=1e-3
-m {G} seed=0,1 hydra.run.dir=x
-m {G} train.learning_rate=1e-3,2e-3 'hydra.sweep.subdir=${{model_name}}-${{seed}}'
search {G} train.steps=10,20 hydra.sweep.dir=
search {G} train.steps=10,20 hydra.sweep.dir=null
search {G} train.steps=10,20 'hydra.sweep.dir=${{now:%Y}}'
search task=books model=hawk data.path=/nope train.steps=1000,2000
search {G} train.steps=10,20 wandb.project=a/b wandb.mode=offline
"""
WRONG = [line for line in LINES.splitlines() if line]


def started(*_: object) -> int:
    raise AssertionError("it is trained")


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory, shared: None) -> Path:
    """The saved configuration of the tiny run."""
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    saved.save(tiny.experiment().config, path)
    return path


@pytest.fixture(autouse=True)
def beside_a_run(configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder `run` has the configuration of a run, and nothing else."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    monkeypatch.setattr(run, "_trained", started)
    shutil.copy(configuration, Path("run", "config.yaml"))


def test_they_are_as_many_as_are_promised() -> None:
    assert len(set(WRONG)) == len(WRONG) >= 150


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[] if number % IN_DEFAULT == 0 else [pytest.mark.exhaustive, pytest.mark.slow])
        for number, line in enumerate(WRONG)
    ],
)
def test_a_wrong_line_is_one_line_and_leaves_nothing(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    code = main(shlex.split(line))
    printed = capsys.readouterr()
    assert code == 2, printed
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before
    assert printed.err.startswith("evalkit: ") and printed.err.count("\n") == 1 and printed.out == "", printed
    assert len(printed.err) < 700 and "Traceback" not in printed.err
