"""Large bfloat16 matrices are multiplied a block at a time on a CPU: the same numbers, and no float32 copy of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.models.layers import modules
from evalkit.models.layers.modules import BLOCK, product, product_transposed


@pytest.mark.parametrize("function", [product, product_transposed])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_blocks_give_the_whole_product(function, dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "LARGE", 1)
    x = jax.random.normal(jax.random.key(0), (5, 48), jnp.bfloat16)
    weight = jax.random.normal(jax.random.key(1), (48, 2 * BLOCK), jnp.bfloat16)
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    y = jax.jit(lambda x, w: function(x, w, dtype))(x, weight if function is product else weight.T)
    assert y.dtype == dtype
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=1e-5 if dtype == jnp.float32 else 0.1)


def test_no_copy_in_float32_is_made() -> None:
    x, weight = jnp.zeros((2, 2048), jnp.bfloat16), jnp.zeros((2048, 4 * BLOCK), jnp.bfloat16)
    assert weight.size >= modules.LARGE
    stats = jax.jit(lambda x, w: product(x, w, x.dtype)).lower(x, weight).compile().memory_analysis()
    assert stats is not None and stats.temp_size_in_bytes < 1.8 * weight.nbytes  # in float32 it alone is 2
