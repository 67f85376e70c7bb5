"""Whether a mixer, task, evaluation or sink keeps its promises: before a training, in `evalkit check`, in your tests.

In a test of your own, with pytest:

    from evalkit.contract import EVERY_PROMISE_OF_MODELS, ModelUnderCheck

    @pytest.mark.parametrize("promise", EVERY_PROMISE_OF_MODELS, ids=lambda promise: promise.name)
    def test_my_mixer(promise):
        assert promise.violation(ModelUnderCheck(my_model)) is None
"""

from evalkit.contract.evaluations import PROMISES_OF_EVALUATIONS as PROMISES_OF_EVALUATIONS
from evalkit.contract.evaluations import EvaluationUnderCheck as EvaluationUnderCheck
from evalkit.contract.models import EVERY_PROMISE_OF_MODELS as EVERY_PROMISE_OF_MODELS
from evalkit.contract.models import OF_ONE_MIXER as OF_ONE_MIXER
from evalkit.contract.models import QUICK_PROMISES_OF_MODELS as QUICK_PROMISES_OF_MODELS
from evalkit.contract.models import ModelUnderCheck as ModelUnderCheck
from evalkit.contract.promises import BrokenPromise as BrokenPromise
from evalkit.contract.promises import Promise as Promise
from evalkit.contract.sinks import PROMISES_OF_SINKS as PROMISES_OF_SINKS
from evalkit.contract.sinks import SinkUnderCheck as SinkUnderCheck
from evalkit.contract.tasks import PROMISES_OF_TASKS as PROMISES_OF_TASKS
from evalkit.contract.tasks import TaskUnderCheck as TaskUnderCheck
