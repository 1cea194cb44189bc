"""Cohorts: which cases and candidates a study measures. A cohort is spent once its labels have been seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.records import Record, of_kind
from tirx_reduce.bench.shapes import Shape, shape_text
from tirx_reduce.cost import Profile
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import Candidate

OPERATORS = ("softmax", "rms_norm", "layer_norm")
TRAINING_SHAPES: tuple[Shape, ...] = ((23, 769), (128, 2048), (1024, 4096), (128, 8193))
HELD_OUT_SHAPES: tuple[Shape, ...] = ((37, 1537), (256, 3072), (768, 6144), (64, 12289))
TRAINING_WIDTHS = (64, 128, 256, 512, 1024)
FAMILIES = ("reload", "private")
TRAINING_VECTOR = 4
FREEZE = "freeze"
"""Kind of the record after which a cohort's labels count as seen."""


class SpentCohort(ReduceError):
    """A cohort's labels were seen before; a result on them would be no held-out result."""


def cases(
    operators: Sequence[str] = OPERATORS,
    shapes: Sequence[Shape] = TRAINING_SHAPES,
    dtypes: Sequence[str] = ("float32",),
) -> tuple[Case, ...]:
    """Every operator at every shape and dtype."""
    return tuple(
        Case(operator=operator, shape=shape, dtype=dtype)
        for dtype in dtypes
        for shape in shapes
        for operator in operators
    )


def grid(
    widths: Sequence[int] = TRAINING_WIDTHS,
    families: Sequence[str] = FAMILIES,
    vector: int = TRAINING_VECTOR,
) -> tuple[Candidate, ...]:
    """Every width with every reuse; U=1, P=1, whole rows."""
    return tuple(Candidate(width=w, vector=vector, reuse=reuse) for w in widths for reuse in families)


def refuse_spent(
    cohort: Iterable[Case],
    profile: Profile | None,
    earlier: Iterable[Sequence[Record]] = (),
    *,
    calibration_sha256: str,
    package_sha256: str,
) -> None:
    """Raise where a replay of `cohort` would not be held out.

    Parameters
    ----------
    cohort
        Cases to be replayed.
    profile
        What they are to test; its training shapes are spent.
    earlier
        Record files of earlier replays; their shapes are spent for any other revision.
    calibration_sha256, package_sha256
        The revision to be replayed: of the same one, a replay may go on.

    Raises
    ------
    SpentCohort
        Names the shapes, and asks for new ones.
    """
    shapes = {case.shape for case in cohort}
    trained = shapes & set(profile.shapes) if profile is not None else set()
    if trained:
        raise SpentCohort(
            f"shapes {_texts(trained)} are training rows of the profile; needs shapes that it has not seen"
        )
    for records in earlier:
        for frozen in of_kind(records, FREEZE):
            seen = shapes & {tuple(case["shape"]) for case in frozen["cohort"]}
            same = (frozen["calibration_sha256"], frozen["package_sha256"]) == (
                calibration_sha256,
                package_sha256,
            )
            if seen and not same:
                raise SpentCohort(
                    f"shapes {_texts(seen)} were replayed for an earlier revision "
                    f"(calibration {frozen['calibration_sha256'][:12]}); needs a new cohort"
                )


def _texts(shapes: Iterable[Shape]) -> str:
    return ", ".join(sorted(map(shape_text, shapes)))
