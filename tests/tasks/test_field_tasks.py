"""The field's tasks against what their authors' code made, and against the laws that define them."""

from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

from evalkit.core import streams
from evalkit.core.batches import SyntheticFeed
from evalkit.core.contracts import Judged
from evalkit.tasks.bracket_arithmetic import SYMBOLS, BracketArithmetic
from evalkit.tasks.copying import Copying
from evalkit.tasks.mad.fuzzy_recall import FuzzyRecall
from evalkit.tasks.mad.in_context_recall import InContextRecall
from evalkit.tasks.mad.memorisation import Memorisation
from evalkit.tasks.mad.noisy_recall import NoisyRecall
from evalkit.tasks.mqar import MQAR
from evalkit.tasks.needle_tokens import FIRST_WORD, HAYSTACKS, MARK, SENTENCE, NeedleTokens, _chain
from evalkit.tasks.ngram_lookup import NgramLookup
from evalkit.tasks.palindrome import Palindrome
from evalkit.tasks.regular_language import LANGUAGES, MODULUS, RegularLanguage, automaton
from evalkit.tasks.stack import Stack
from evalkit.tasks.state_tracking import GROUPS, StateTracking, _laws, elements, generating, table_of

# int16 copies of batches that zoology (d88d6f5) and mad-lab (0f49a45) drew; -100 is not scored.
GOLDEN = Path(__file__).parents[1] / "golden"
BATCHES = np.load(GOLDEN / "recall_batches.npz")
# 200 words each that neural_networks_chomsky_hierarchy (8084451) drew, with their answers.
WORDS = np.load(GOLDEN / "languages.npz")
DRAWS = 100_000
UNLIKELY = 1e-4


@pytest.mark.parametrize(
    "name", sorted(name[5:-7] for name in BATCHES if name.startswith("mqar_v") and "inputs" in name)
)
def test_mqar_gives_zoologys_labels(name: str) -> None:
    """Every one; where a filler is a key too, nothing tells it from the query, and the first of both is scored here."""
    inputs, labels = (BATCHES[f"mqar_{name}_{part}"].astype(np.int64) for part in ("inputs", "labels"))
    vocab, length, pairs, fillers = name.split("_")
    task = MQAR(
        vocab_size=int(vocab[1:]), length=int(length[1:]), pairs=int(pairs[2:]), random_non_queries=fillers == "random"
    )
    for tokens, wanted in zip(inputs, labels, strict=True):
        targets, mask = task.solve(tokens)
        asked = wanted != -100
        np.testing.assert_array_equal(targets[asked], wanted[asked])
        assert mask.sum() == task.scored == asked.sum()
        rest = tokens[2 * task.pairs :: 2]
        twice = [place for place in np.flatnonzero(mask != asked) if (rest == tokens[place]).sum() < 2]
        assert not twice, "scored elsewhere, and the key is there once"


MAD = {
    "in_context_recall": InContextRecall(multi_query=False),
    "noisy_in_context_recall": NoisyRecall(multi_query=False),
    "fuzzy_in_context_recall": FuzzyRecall(multi_query=False),
    "memorization": Memorisation(),
}
NEVER_SHOWN = {("fuzzy_in_context_recall", "train"): [29]}
"""Examples of MAD's whose key does not stand before the question, so that nothing tells its value."""


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", MAD)
def test_mads_batches_have_the_targets_of_the_rule(name: str, split: str) -> None:
    task = MAD[name]
    task = task.judged if split == "test" and isinstance(task, Judged) else task
    inputs, targets = (BATCHES[f"{name}_{split}_{part}"].astype(np.int32) for part in ("inputs", "targets"))
    unknown = NEVER_SHOWN.get((name, split), [])
    for number, (tokens, wanted) in enumerate(zip(inputs, targets, strict=True)):
        if number in unknown:
            with pytest.raises(KeyError):
                task.solve(tokens)
            continue
        found, mask = task.solve(tokens)
        np.testing.assert_array_equal(np.where(mask, found, -100), wanted, f"example {number}")


@cache
def many(task: MQAR) -> np.ndarray:
    """So many examples' tokens."""
    keys = jax.random.split(jax.random.key(5), DRAWS)
    return np.asarray(jax.jit(jax.vmap(lambda key: task.sample(key, task.length).tokens))(keys))


@pytest.mark.parametrize("pairs", [2, 3, 8])
def test_how_many_pairs_there_are_says_nothing_of_the_fillers(pairs: int) -> None:
    task = MQAR(vocab_size=64, length=64, pairs=pairs, fewest_pairs=1)
    examples = jax.jit(jax.vmap(lambda key: task.sample(key, 64)))(jax.random.split(jax.random.key(0), 4096))
    counts, first = np.asarray(examples.mask).sum(axis=1), np.asarray(examples.tokens)[:, 2 * pairs]
    odd_or_even = [np.bincount(first[counts == count] % 2) for count in np.unique(counts)]
    assert len(odd_or_even) > 1 and chi2_contingency(odd_or_even).pvalue > UNLIKELY


@pytest.mark.parametrize(
    ("pairs", "length", "drawn"), [(12, 48, [2, 4, 8, 12]), (8, 48, [2, 4, 8]), (8, 20, [2, 4, 5])]
)
def test_as_many_pairs_as_held_out_sequences_have_are_trained_on(pairs: int, length: int, drawn: list[int]) -> None:
    task = MQAR(vocab_size=64, length=48, pairs=pairs, fewest_pairs=2)
    masks = jax.jit(jax.vmap(lambda key: task.sample(key, length).mask))(jax.random.split(jax.random.key(0), 256))
    assert np.unique(np.asarray(masks).sum(axis=1)).tolist() == drawn


def test_the_example_of_mqar_is_one() -> None:
    tokens = np.array([2, 8, 4, 7, 0, 0, 4, 0, 0, 0, 0, 0, 2, 0, 0, 0])
    targets, mask = MQAR(vocab_size=16, length=16, pairs=2).solve(tokens)
    assert targets[mask].tolist() == [7, 8] and np.flatnonzero(mask).tolist() == [6, 12]


def test_gaps_of_mqar_follow_zoologys_power_law() -> None:
    """Two draws without replacement with weights g^(a − 1): p_i p_j / (1 − p_i) for the two in order, exactly."""
    task = MQAR(vocab_size=32, length=20, pairs=2, power_a=0.3, random_non_queries=False)
    tokens, slots = many(task), 8
    rest = tokens[:, 4::2]
    first, second = ((rest == tokens[:, [2 * pair]]).argmax(axis=1) for pair in range(2))
    weights = np.arange(1, slots + 1) ** (task.power_a - 1)
    p = weights / weights.sum()
    law = p[:, None] * p / (1 - p[:, None])
    places = [(i, j) for i in range(slots) for j in range(slots) if i != j]
    counts = np.bincount(first * slots + second, minlength=slots**2)
    seen, wanted = ([table[i * slots + j] for i, j in places] for table in (counts, DRAWS * law.reshape(-1)))
    assert sum(seen) == DRAWS and chisquare(seen, wanted).pvalue > UNLIKELY


@pytest.mark.parametrize(("vocab", "length", "pairs"), [(256, 64, 8), (8192, 256, 32)])
def test_queries_of_mqar_stand_where_zoologys_do(vocab: int, length: int, pairs: int) -> None:
    """Zoology's own batches, with its own exponent, 0.01: their places against those of many examples of ours."""
    labels = BATCHES[f"mqar_v{vocab}_t{length}_kv{pairs}_random_labels"]
    task = MQAR(vocab_size=vocab, length=length, pairs=pairs)
    keys = jax.random.split(jax.random.key(6), DRAWS // pairs)
    masks = np.asarray(jax.jit(jax.vmap(lambda key: task.sample(key, length).mask))(keys))
    theirs, ours = ((found[:, 2 * pairs :: 2]).sum(axis=0) for found in (labels != -100, masks))
    assert theirs.sum() == pairs * len(labels) and ours.sum() == pairs * len(masks)
    # Each place of a sequence has a query or not, and many have one surely: so by place, not by gap.
    share = ours / len(masks)
    open_to_chance = (share > 0.02) & (share < 0.98)
    spread = np.sqrt(share * (1 - share) * (1 / len(labels) + 1 / len(masks)))
    apart = ((theirs / len(labels) - share) / np.where(spread == 0, 1, spread))[open_to_chance]
    assert open_to_chance.sum() > 8 and np.abs(apart).max() < 4.5 and 0.4 < np.square(apart).mean() < 2.0


def test_tokens_of_mqar_are_distributed_as_zoologys() -> None:
    """Keys and values uniform; at places of queries a key in two of eight cases, else any token, as everywhere else."""
    task = MQAR(vocab_size=32, length=20, pairs=2)
    tokens, vocab = many(task), 32
    uniform = np.full(vocab, 1 / vocab)
    keys, values = np.zeros(vocab), np.zeros(vocab)
    keys[1:16], values[16:] = 1 / 15, 1 / 16
    laws = {0: keys, 1: values, 4: 0.25 * keys + 0.75 * uniform, 5: uniform}
    for start, law in laws.items():
        stop = 4 if start < 4 else None
        counts = np.bincount(tokens[:, start:stop:2].reshape(-1), minlength=vocab)
        wanted = counts.sum() * law
        assert not counts[wanted == 0].any()
        assert chisquare(counts[wanted > 0], wanted[wanted > 0]).pvalue > UNLIKELY


@pytest.mark.parametrize(
    ("name", "order", "commutes"),
    [("z2", 2, True), ("s3", 6, False), ("z60", 60, True), ("a4xz5", 60, False), ("a5", 60, False), ("s5", 120, False)],
)
def test_a_group_is_one(name: str, order: int, commutes: bool) -> None:
    table = table_of(name)
    numbers = np.arange(order)
    assert table.shape == (order, order) and len(elements(name)) == order
    np.testing.assert_array_equal(table[0], numbers)
    np.testing.assert_array_equal(table[:, 0], numbers)
    assert (np.sort(table) == numbers).all() and (np.sort(table.T) == numbers).all(), "no inverses"
    np.testing.assert_array_equal(table[table], table[numbers[:, None, None], table]), "not associative"
    assert (table == table.T).all() == commutes


def commutators(name: str) -> set[int]:
    """The subgroup that commutators generate."""
    table = table_of(name)
    inverse = (table == 0).argmax(axis=1)
    found = set(table[table, table[inverse[:, None], inverse]].reshape(-1).tolist())
    while (more := {int(table[a, b]) for a in found for b in found}) != found:
        found = more
    return found


def test_the_unsolvable_groups_are_those_of_the_paper() -> None:
    """A₅ is its own commutator subgroup, and S₅'s is A₅: no chain of them ends. A₄ × Z₅'s is Klein's group of four."""
    assert {name: len(commutators(name)) for name in GROUPS} == {
        "z2": 1, "s3": 3, "z60": 1, "a4xz5": 4, "a5": 60, "s5": 60,
    }  # fmt: skip


def test_a_word_is_read_from_the_left() -> None:
    """In S₃ (12) and then (13) takes 1 to 2, 2 to 1 and on to 3, and 3 to 1: the cycle (123)."""
    task = StateTracking()
    number = {task.describe(np.array([token])): token for token in range(6)}
    word = np.array([number[element] for element in ("(12)", "(13)", "(23)", "e")])
    assert task.describe(task.solve(word)[0]) == "(12) (123) (13) (13)"
    assert StateTracking(group="z2").solve(np.array([1, 1, 1, 0]))[0].tolist() == [1, 0, 1, 1]
    assert StateTracking(group="z60").solve(np.array([50, 15]))[0].tolist() == [50, 5]


@pytest.mark.slow
def test_what_is_held_out_scores_answers_alone() -> None:
    """MAD trains on every next token and tests on answers; the sequences of keys of one size are the same."""
    task = NoisyRecall(length=32)
    trained = streams.held_out_batch(task, streams.TEST, 0, 4, 32)
    judged = SyntheticFeed(task).held_out(streams.TEST, 0, 4, 32)
    np.testing.assert_array_equal(trained.tokens, judged.tokens)
    assert trained.mask[:, :-1].all() and not judged.mask.all(axis=1).any()
    np.testing.assert_array_equal(np.where(judged.mask, trained.targets, 0), judged.targets)
    assert (np.asarray(judged.tokens)[judged.mask] < task.keys).all()


def drawn(task, shortest: int, batch: int = 64, step: int = 3):
    draw = jax.jit(lambda step: streams.train_batch(task, 0, step, batch, task.length, shortest))
    return jax.device_get(draw(step))


def test_lengths_of_training_are_drawn_and_what_follows_is_not_scored() -> None:
    """Of copying at most eight, both ends among them; each example is one of its own length, padded."""
    task = Copying(length=30)
    assert streams.lengths_between(task, 4, 30) == [4, 8, 10, 14, 18, 22, 26, 30], "odd ones give way"
    assert streams.lengths_between(task, 30, 30) == [30]
    with pytest.raises(ValueError, match="length=5; allowed: even"):
        streams.lengths_between(task, 5, 30)
    example = drawn(task, 4)
    lengths = example.mask.sum(axis=1) * 2  # n letters and the end are scored of 2n + 2 tokens
    assert set(lengths) == {4, 8, 10, 14, 18, 22, 26, 30}
    for tokens, targets, mask, length in zip(*example[:3], lengths, strict=True):
        wanted, scored = task.solve(tokens[:length])
        np.testing.assert_array_equal(mask, np.pad(scored, (0, 30 - length)))
        np.testing.assert_array_equal(targets[mask], wanted[scored])
        assert not tokens[length:].any()


def test_a_word_is_cut_at_any_length() -> None:
    task = StateTracking(group="z2", length=12)
    one, again, later = drawn(task, 3, 256), drawn(task, 3, 256), drawn(task, 3, 256, step=4)
    lengths = one.mask.sum(axis=1)
    assert set(lengths) == set(range(3, 13)) and (one.mask == (np.arange(12) < lengths[:, None])).all()
    np.testing.assert_array_equal(one.targets, np.cumsum(one.tokens, axis=1) % 2)
    np.testing.assert_array_equal(one.mask, again.mask)
    assert (one.mask != later.mask).any(), "every step draws its own lengths"


def test_an_ngram_is_looked_up_where_it_first_stands() -> None:
    task = NgramLookup(vocab_size=4, length=12, ngram=2, answer=2)
    a, b, begin, bar = range(4)
    tokens = np.array([begin, a, b, b, a, b, a, a, b, bar, a, b, b])
    assert task.solve(tokens)[0][11:].tolist() == [b, a]
    assert task.describe(tokens) == "$ a b b a b a a b | a b b"


def questioned(name: str) -> tuple[RegularLanguage | BracketArithmetic, np.ndarray, np.ndarray]:
    """The task of a batch of words by others, those words as it writes them, and their answers."""
    language, _, length = name.rpartition("_")
    words, answers = (WORDS[f"{name}_{part}"].astype(np.int64) for part in ("inputs", "labels"))
    if language.startswith("brackets"):
        return BracketArithmetic(length=int(length), multiplication="times" in language), words, answers
    # In their batches an answer and a step of a walk have numbers of their own.
    steps = MODULUS if language == "cycle_navigation" else 0
    return RegularLanguage(language=language, length=int(length)), words + steps, answers


BY_OTHERS = sorted(name.removesuffix("_inputs") for name in WORDS if name.endswith("_inputs"))


@pytest.mark.parametrize("name", BY_OTHERS)
def test_words_of_others_have_their_answers_and_their_laws(name: str) -> None:
    """Every answer by the rule; what is drawn here has as many of each token, and each answer as often."""
    task, words, answers = questioned(name)
    question = task.vocab_size - 1
    for word, answer in zip(words, answers, strict=True):
        targets, mask = task.solve(np.append(word, question))
        assert np.flatnonzero(mask).tolist() == [len(word)] and targets[-1] == answer
    ours = jax.device_get(streams.held_out_batch(task, streams.TEST, 0, 4_000, task.length))
    ends = ours.mask.argmax(axis=1)
    for theirs, here in (
        (answers, ours.targets[ours.mask]),
        *((words[:, place], ours.tokens[:, place]) for place in (0, 1, words.shape[1] // 2, words.shape[1] - 1)),
    ):
        both = np.stack([np.bincount(drawn, minlength=task.vocab_size) for drawn in (theirs, here)])
        shown = both[:, both.any(axis=0)]
        assert shown.shape[1] == 1 or chi2_contingency(shown).pvalue > UNLIKELY / len(BY_OTHERS)
    assert set(ends) == {words.shape[1]}, "an expression without brackets has an odd number of tokens"
    assert abs(np.bincount(ours.targets[ours.mask]).max() / 4_000 - task.chance) < 0.03


@pytest.mark.parametrize("name", [name for name in BY_OTHERS if "arithmetic" in name or "brackets" in name])
def test_the_value_of_an_expression_is_pythons(name: str) -> None:
    task, words, answers = questioned(name)
    symbols = SYMBOLS if isinstance(task, BracketArithmetic) else automaton(task.language).letters
    texts = ["".join(symbols[token] for token in word).replace("×", "*") for word in words]
    assert [eval(text) % MODULUS for text in texts] == answers.tolist()


@pytest.mark.parametrize("asked", ["end", "everywhere"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_shorter_word_of_a_language_has_its_own_answer(language: str, asked: str) -> None:
    task = RegularLanguage(language=language, length=13, asked=asked)
    example = drawn(task, 3, 128)
    ends = example.mask.shape[1] - 1 - example.mask[:, ::-1].argmax(axis=1)
    step = len(automaton(language).drawn)
    questions = np.ones(len(ends)) if asked == "end" else 1 + -(-ends // step)
    assert set(ends) == set(range(3, 14, step)) and (example.mask.sum(axis=1) == questions).all()
    for tokens, targets, mask, end in zip(*example[:3], ends, strict=True):
        wanted, scored = task.solve(tokens)
        np.testing.assert_array_equal(mask, scored)
        np.testing.assert_array_equal(targets[mask], wanted[mask])
        assert tokens[end] == task.question and not tokens[end + 1 :].any()


def test_of_a_key_that_is_written_twice_the_last_value_counts() -> None:
    """So many keys stand twice with two values, and whoever remembers the first is wrong of these alone."""
    task = MQAR(vocab_size=128, length=64, pairs=8, rewrites=5)
    keys = jax.random.split(jax.random.key(1), 300)
    drawn = jax.device_get(jax.jit(jax.vmap(lambda key: task.sample(key, 64)))(keys))
    wrong, places = 0, []
    for tokens, targets, mask in zip(drawn.tokens, drawn.targets, drawn.mask, strict=True):
        pairs = tokens[: 2 * 13].reshape(-1, 2).tolist()
        first = dict(reversed(pairs))
        twice = [key for key in first if [one for one, _ in pairs].count(key) == 2]
        assert len(first) == 8 and len(twice) == 5 and len({value for _, value in pairs}) == 13
        wrong += sum(first[key] != due for key, due in zip(tokens[mask].tolist(), targets[mask].tolist(), strict=True))
        places += [place for place, (key, _) in enumerate(pairs) if key in twice]
    assert wrong == 5 * len(keys)
    counts = np.bincount(places, minlength=13)
    assert chisquare(counts).pvalue > UNLIKELY, "any place may hold a key that stands twice"


@pytest.mark.parametrize(("group", "count"), [("z2", 2), ("s3", 3), ("a5", 2), ("s5", 2), ("s5", 12)])
def test_generators_alone_stand_in_words_and_reach_every_element(group: str, count: int) -> None:
    task = StateTracking(group=group, generators=count, length=60)
    keys = jax.random.split(jax.random.key(2), 400)
    drawn = jax.device_get(jax.jit(jax.vmap(lambda key: task.sample(key, 60)))(keys))
    assert sorted(set(drawn.tokens.ravel().tolist())) == sorted(generating(group)[:count].tolist())
    laws = np.stack(_laws(group, count, 60))
    assert (laws[-1] > 0).all(), "a position may not tell which half of the group its product is of"
    np.testing.assert_allclose(laws.sum(axis=1), 1)
    counts = np.bincount(drawn.targets[:, 11], minlength=task.vocab_size)
    there = laws[11] > 0
    assert not counts[~there].any() and chisquare(counts[there], 400 * laws[11][there]).pvalue > UNLIKELY
    assert task.chance == pytest.approx(laws.max(axis=1).mean()) and task.chance >= 1 / task.vocab_size


@pytest.mark.parametrize("haystack", HAYSTACKS)
def test_a_needle_stands_anywhere_in_a_text_that_follows_its_law(haystack: str) -> None:
    task = NeedleTokens(length=80, haystack=haystack)
    keys = jax.random.split(jax.random.key(4), 2000)
    drawn = jax.device_get(jax.jit(jax.vmap(lambda key: task.sample(key, 80)))(keys))
    places = (drawn.tokens == MARK).argmax(axis=1)
    assert ((drawn.tokens == MARK).sum(axis=1) == 1).all()
    assert chisquare(np.bincount(places, minlength=68)).pvalue > UNLIKELY and places.max() == 67
    for tokens, place in zip(drawn.tokens[:50], places[:50], strict=True):
        words = np.delete(tokens[:77], np.arange(place, place + 3 + 7)) - FIRST_WORD
        if haystack == "sentence":
            assert (words[SENTENCE:] == words[:-SENTENCE]).all()
        else:
            chain = _chain(task.vocab_size - FIRST_WORD)
            assert all(word in chain[a, b] for a, b, word in zip(words, words[1:], words[2:], strict=False))


def test_a_palindrome_reads_the_same_from_both_ends() -> None:
    """With the last letter, which is due at the end; letters are equally frequent."""
    batch = jax.device_get(streams.held_out_batch(Palindrome(), streams.TEST, 0, 200, 64))
    whole = np.append(batch.tokens, batch.targets[:, -1:], axis=1)
    np.testing.assert_array_equal(whole, whole[:, ::-1])
    assert (batch.mask.sum(axis=1) == 32).all() and set(batch.tokens[:, 32]) == {26}
    assert chisquare(np.bincount(batch.tokens[:, :32].reshape(-1))).pvalue > UNLIKELY


@pytest.mark.parametrize(
    ("task", "length", "share"),
    [(Stack(stacks=4, elements=8), 48, 0.89), (Stack(stacks=4, elements=8), 96, 0.81), (Stack(), 256, 0.97)],
)
def test_most_pops_of_a_stack_take_what_was_pushed_last(task: Stack, length: int, share: float) -> None:
    """A rule that ignores what was popped: the pages say how much of the task it solves."""
    right = []
    examples = jax.vmap(lambda key: task.sample(key, length))(jax.random.split(jax.random.key(0), 500))
    for tokens, targets in zip(np.asarray(examples.tokens), np.asarray(examples.targets), strict=True):
        latest, hits = {}, []
        for at in range(0, length - 2, 3):
            operation, stack, element = tokens[at : at + 3]
            if operation == task.push:
                latest[stack] = element
            else:
                hits.append(latest[stack] == targets[at + 1])
        right.append(np.mean(hits))
    assert np.mean(right) == pytest.approx(share, abs=0.015)


def test_operations_on_stacks_follow_their_law() -> None:
    """Any stack, any element, and a pop half of the time where there is something; the last operation is a pop."""
    task = Stack(stacks=4, elements=5)
    tokens, _, mask, _ = jax.device_get(streams.held_out_batch(task, streams.TEST, 0, 500, 122))
    operations = tokens[:, :120].reshape(500, 40, 3)
    assert not tokens[:, 120:].any() and not mask[:, 120:].any()
    assert chisquare(np.bincount(operations[:, :-1, 1].reshape(-1) - 5)).pvalue > UNLIKELY
    pushed = operations[..., 0] == task.push
    assert chisquare(np.bincount(operations[..., 2][pushed])).pvalue > UNLIKELY
    depth = np.zeros((500, 4), int)
    could, did = 0, 0
    for t in range(40):
        stack, rows = operations[:, t, 1] - 5, np.arange(500)
        filled = depth[rows, stack] > 0
        assert pushed[~filled, t].all()
        if t < 39:
            could, did = could + filled.sum(), did + (~pushed[:, t]).sum()
        else:
            assert (pushed[:, t] == ~depth.any(axis=1)).all()
        depth[rows, stack] += np.where(pushed[:, t], 1, -1)
    assert abs(did / could - 0.5) < 0.02


def test_the_chance_of_copying_counts_the_end_that_is_always_right() -> None:
    """As often as the commonest answer at each place is right."""
    task = Copying(length=18)
    drawn = jax.device_get(streams.held_out_batch(task, streams.TEST, 0, 4_000, task.length))
    answers = drawn.targets[drawn.mask].reshape(4_000, -1)
    commonest = [np.bincount(place).max() / 4_000 for place in answers.T]
    assert np.mean(commonest) == pytest.approx(task.chance, abs=0.01) and commonest[-1] == 1.0
