"""The only writers of TIR: plans become kernels here, and TVM finds us here."""

from .building import build, compile, register, tir_pipeline
from .planning import as_target, describe, force, lower, plan
from .rule import RowReduction, ScheduleReductions
from .settings import use

__all__ = [
    "RowReduction",
    "ScheduleReductions",
    "as_target",
    "build",
    "compile",
    "describe",
    "force",
    "lower",
    "plan",
    "register",
    "tir_pipeline",
    "use",
]
