"""Several processes that train one model: what they agree on, and what one says when another has died."""
