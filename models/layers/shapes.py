"""Types of arrays by their shapes.

b is batch, t time, d width, r recurrent width, n heads, h head width, s stored keys, v vocabulary.
"""

from jax import Array
from jaxtyping import Float, Int, Key

Tokens = Int[Array, "b t"]
Positions = Int[Array, "b t"]
PositionsOfAll = Int[Array, "#b t"]  # a single row where all rows have the same positions
Places = Int[Array, "b n"]  # indices along t
Activations = Float[Array, "b t d"]
States = Float[Array, "b t r"]
Logits = Float[Array, "b t v"]
Queries = Float[Array, "b t n h"]
Keys = Float[Array, "b s h"]
Rows = Int[Array, " b"]
PRNGKey = Key[Array, ""]
