"""The parts of a mixer: its contract, shapes, linear maps, norm, convolution, gated MLP, and what positions mean.

A mixer of your own is a class with the methods of `Mixer`, made of these:

    from flax import nnx
    from evalkit.models.layers import Linear, after, continued, scanned

`evalkit/models/mixers/lru.py` is a short one to start from.
"""

from evalkit.models.layers.mixer import Activations as Activations
from evalkit.models.layers.mixer import Cache as Cache
from evalkit.models.layers.mixer import Counted as Counted
from evalkit.models.layers.mixer import Decaying as Decaying
from evalkit.models.layers.mixer import Mixer as Mixer
from evalkit.models.layers.mixer import Positions as Positions
from evalkit.models.layers.mixer import Rows as Rows
from evalkit.models.layers.mixer import States as States
from evalkit.models.layers.mixer import Tokens as Tokens
from evalkit.models.layers.mixer import ValueSharing as ValueSharing
from evalkit.models.layers.modules import BlockDiagonalLinear as BlockDiagonalLinear
from evalkit.models.layers.modules import CausalConv1D as CausalConv1D
from evalkit.models.layers.modules import GatedMLP as GatedMLP
from evalkit.models.layers.modules import Linear as Linear
from evalkit.models.layers.modules import NoDecay as NoDecay
from evalkit.models.layers.modules import RMSNorm as RMSNorm
from evalkit.models.layers.modules import gelu_times as gelu_times
from evalkit.models.layers.modules import side_by_side as side_by_side
from evalkit.models.layers.positions import after as after
from evalkit.models.layers.positions import continued as continued
from evalkit.models.layers.positions import matrix_scanned as matrix_scanned
from evalkit.models.layers.positions import scanned as scanned
from evalkit.models.layers.positions import selective_scanned as selective_scanned
from evalkit.models.layers.recurrent import Recurrent as Recurrent
from evalkit.models.layers.recurrent import RecurrentCache as RecurrentCache
from evalkit.models.layers.shares import TERM as TERM
from evalkit.models.layers.shares import Division as Division
from evalkit.models.layers.shares import into as into
from evalkit.models.layers.shares import out_of as out_of
