"""Tasks. A synthetic one samples an example by a pure, jittable function, and states its rule again in plain NumPy.

A task of your own is a frozen dataclass with the methods of `base.Synthetic`; `tasks.text` reads text.
"""

from evalkit.tasks.base import Example as Example
