"""Exact replay of draft heads along answers that a target has given."""

from .replay import Drafting, cycle_offsets, replay
from .types import MISSED, Continuation, Ranks, Replayed
from .walk import Walked, accepted, walk

__all__ = [
    "MISSED",
    "Continuation",
    "Drafting",
    "Ranks",
    "Replayed",
    "Walked",
    "accepted",
    "cycle_offsets",
    "replay",
    "walk",
]
