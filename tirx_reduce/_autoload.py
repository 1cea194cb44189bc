"""What `import tvm` calls through its entry-point group `tvm.backends`: makes our pipelines known by name.

The names cost next to nothing; what they stand for is imported when they are first used. So it does not
matter whether TVM is imported first or by one of our own modules, which are half-initialised at this moment.
"""

from __future__ import annotations

from typing import Any

NAME = "tirx_reduce"


def register() -> None:
    """Register the TIR and the Relax pipeline `tirx_reduce`; TVM warns, and goes on, if this fails."""
    from tvm.relax import pipeline as relax_pipelines
    from tvm.tirx import compilation_pipeline

    if NAME not in compilation_pipeline.PIPELINE_MAP:
        compilation_pipeline.register_tir_pipeline(NAME, _tir_pipeline)
    if NAME not in relax_pipelines.PIPELINE_MAP:
        relax_pipelines.register_pipeline(NAME)(_relax_pipeline)


def _tir_pipeline() -> Any:
    from tirx_reduce.schedules.building import tir_pipeline

    return tir_pipeline()


def _relax_pipeline() -> Any:
    from tirx_reduce.schedules.building import relax_pipeline

    return relax_pipeline()
