"""Language models as patterns of mixers, such as Hawk, Griffin and MQA; `build` returns pure functions of parameters.

A mixer of your own is one file in `models/mixers/`, made of the parts in `evalkit.models.layers`.
"""

from evalkit.models.model import Model as Model
from evalkit.models.model import build as build
