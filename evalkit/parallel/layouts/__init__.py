"""Where parameters lie while a step works on them, and what devices tell each other of them."""
