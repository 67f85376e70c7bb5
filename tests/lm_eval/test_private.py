"""The private parts of lm-eval that the one file `evalkit/lm_eval/private.py` takes are where it looks for them."""

from argparse import Namespace

import lm_eval
from lm_eval.api.task import Task
from lm_eval.config.evaluate_config import EvaluatorConfig

from evalkit.lm_eval import private


def test_each_verb_has_a_parser_and_reads_its_words() -> None:
    harness = private.HarnessCLI()
    assert {"", "run", "ls"} <= set(private.parsers(harness))
    assert private.parsed(harness, ["ls", "tasks"]).command == "ls"


def test_what_is_put_in_place_of_a_function_is_taken_back() -> None:
    evaluate, build, configuration = lm_eval.simple_evaluate, Task.build_all_requests, EvaluatorConfig()
    with private.configured_by(configuration):
        assert EvaluatorConfig.from_cli(Namespace()) is configuration
    assert EvaluatorConfig.from_cli(Namespace(tasks=["piqa"])).tasks == ["piqa"]
    with private.evaluating_by(dict), private.building_requests_by(lambda original: lambda *_: original(*_)):
        assert lm_eval.simple_evaluate is dict and Task.build_all_requests is not build
    assert lm_eval.simple_evaluate is evaluate and Task.build_all_requests is build
