"""What `import tvm` calls through its entry-point group `tvm.backends`: registers our named pipelines."""

from __future__ import annotations


def register() -> None:
    """Register the TIR and the Relax pipeline `tirx_reduce`; TVM warns, and goes on, if this fails."""
    from tirx_reduce.schedules import register as register_pipelines

    register_pipelines()
