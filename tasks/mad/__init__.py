"""MAD's synthetic tasks, as its generators draw them (Poli et al. 2024, 2403.17844; `mad/data/instances.py`).

Its selective copying is `tasks/selective_copying.py` with `layout=mad`, which differs in two ways: MAD leaves the
position of its copy token unscored and asks at the blanks after it, and its context ends with a data token. Its
compression is left out: there the model's
last state goes through a decoder of MAD's own, which no model here has.

MAD trains on the next token everywhere and tests on answers alone. So a task here is trained with `loss=all`, and
held-out sequences come from its `judged` task.
"""
