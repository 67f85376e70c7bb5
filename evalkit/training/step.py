"""One optimisation step of one seed: the gradient over micro-batches, and the update."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float

from evalkit.core.contracts import Cache, Feed, LanguageModel, Params
from evalkit.core.objective import scored_only, tally
from evalkit.numerics import random_key
from evalkit.parallel.devices import in_parts, microbatch
from evalkit.parallel.layouts.mesh import Sizes, layout_of, share_of
from evalkit.tasks import Example
from evalkit.training import optimizer
from evalkit.training.passing import StatePassing, StreamInputs, copied_to
from evalkit.training.settings import Training
from evalkit.training.state import Sums, TrainState


class Data(NamedTuple):
    """What a step reads: the sequences of its batch, and what the streams of `train.state_passing` read before it."""

    example: Example
    streams: StreamInputs | None


class Step:
    """One step on a batch of `feed`, of whose sequences `scored` positions count (None: all, or a varying number).

    `streams` are those of `train.state_passing`, where there are any. With `sizes`, the devices of a mesh take the step
    together, inside `jax.shard_map` over both axes. Raises UserError for a model that the mesh does not divide, and
    ValueError for training that looks at whole arrays.
    """

    def __init__(
        self,
        feed: Feed,
        scored: int | None,
        model: LanguageModel,
        training: Training,
        streams: int,
        sizes: Sizes | None = None,
    ):
        params = jax.eval_shape(model.init, random_key(0))
        self.layout = training.layout(params, model.decay_mask(params))
        if sizes is not None:
            training.check_divided()
            self.layout = layout_of(model, sizes, training.gather, training.parameter_dtype)
            model = share_of(model, sizes)
        self.feed, self.scored, self.model, self.training = feed, scored, model, training
        self.optimizer = training.transformation(self.layout.whole)
        self.passing = None
        if training.state_passing is not None:
            probability, facts = training.state_passing, training.stream_facts
            self.passing = StatePassing(feed, model, streams, probability, facts, training.first_states)

    def init_optimizer(self, params: Params) -> Any:
        """The optimiser's first state."""
        return self.layout.init_optimizer(self.optimizer.init, params)

    def data(
        self,
        index: Array,
        step: Array,
        loaded: Any,
        *,
        seed: Array,
        length: int,
        batch: int,
        shards: int,
        shortest: int | None = None,
    ) -> Data:
        """What this device reads at `step`, the one at `index` of what was `loaded`; `shards` devices share a batch."""
        example = self.feed.batch(loaded, index, seed, step, batch, length, shortest, shards)
        if self.passing is None:
            return Data(example, None)
        return Data(example, self.passing.drawn(seed, step, example.tokens.shape[1], shards))

    def take(
        self,
        state: TrainState,
        sums: Sums,
        data: Data,
        *,
        batch: int,
        shards: int,
        rate: Float[Array, ""] | None = None,
    ) -> tuple[TrainState, Sums]:
        """The packed state after a step on `data`, this device's of a `batch` that `shards` devices share.

        `rate` is the learning rate of this seed over that of the first, where they differ: updates are linear in it.
        """
        example, drawn = data
        gathered, streams = self.layout.gathered(state.params), state.streams
        starts = streams
        if self.passing is not None and drawn is not None:
            size = self.microbatch(*drawn.tokens.shape)
            streams = self.passing.advance(self.layout.used(gathered), streams, drawn, size)
            starts = self.passing.starts(streams, drawn, shards)
        loss, accuracy, gradient = self.layout.summed(self.gradient(gathered, example, starts), shards)
        gradient = jax.tree.map(lambda leaf: leaf / batch, gradient)
        norm = self.layout.norm(gradient)
        gradient = self.layout.clipped(gradient, norm, self.training.clip)
        updates, optimizer_state = self.optimizer.update(gradient, state.optimizer, state.params)
        if rate is not None:
            updates = jax.tree.map(lambda leaf: rate * leaf, updates)
        bad = ~(jnp.isfinite(loss) & jnp.isfinite(norm))
        vectors = optax.apply_updates(state.params, updates)
        after = TrainState(vectors, optimizer_state, state.step + 1, state.average, streams)
        if self.training.skip_nonfinite:
            before = state._replace(step=state.step + 1)
            after = jax.tree.map(lambda old, new: jnp.where(bad, old, new), before, after)
            loss, accuracy = (jnp.where(bad, 0, total) for total in (loss, accuracy))
        average, decay = state.average, self.training.average
        if callable(decay):
            average = optimizer.average_of_optimizer(decay, after.optimizer, after.params)
        elif decay is not None:
            average = optimizer.ema_update(average, after.params, decay, state.step)
        after = after._replace(average=average)
        first = jnp.where((sums.first_nonfinite < 0) & bad, state.step, sums.first_nonfinite)
        return after, Sums(sums.loss + loss, sums.accuracy + accuracy, first, sums.nonfinite_steps + bad)

    def gradient(self, gathered: Any, example: Example, streams: Cache | None = None) -> tuple[Array, Array, Any]:
        """Loss, accuracy and rows of the gradient, each summed over the sequences, a micro-batch at a time.

        `gathered` and the rows are as the layout makes them. With `streams`, sequences begin from their states, which
        are constants: no gradient flows into them.
        """

        def summed_loss(gathered: Any, part: Example, before: Cache | None) -> tuple[Array, tuple[Array, Array]]:
            at, scored = scored_only(part, self.scored)
            logits, _ = self.model.apply(self.layout.used(gathered), part.tokens, part.positions, before, at)
            scores = tally(logits, scored).scores()
            loss, smoothing = scores["loss"].sum(), self.training.label_smoothing
            # Rows have the loss without smoothing, which runs with and without it share.
            aim = tally(logits, scored, smoothing).scores()["loss"].sum() if smoothing else loss
            return aim, (loss, scores["accuracy"].sum())

        policy = self.layout.remat_policy
        kept = summed_loss if policy is None else jax.checkpoint(summed_loss, policy=policy)

        def add(total: Any, part: tuple[Example, Cache | None]) -> tuple[Any, None]:
            (_, (loss, accuracy)), gradient = jax.value_and_grad(kept, has_aux=True)(gathered, *part)
            return jax.tree.map(jnp.add, total, (loss, accuracy, self.layout.rows(gradient))), None

        sequences, length = example.tokens.shape
        size = self.microbatch(sequences, length)
        before = None if streams is None else copied_to(streams, sequences)
        parts = in_parts((example, before), size)
        zero = (jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, self.layout.rows(gathered)))
        return lax.scan(add, zero, parts)[0]

    def microbatch(self, sequences: int, length: int) -> int:
        """How many of `sequences` of `length` tokens one device takes at a time: a divisor of them."""
        return microbatch(self.training.microbatch, sequences, length)
