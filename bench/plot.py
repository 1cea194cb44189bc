"""Pictures of records: price surface, predicted against measured, gains. Readable without colours."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirx_reduce.errors import ReduceError
from tirx_reduce.values import Candidate, DeviceLimits, Features

SUFFIXES = (".png", ".svg", ".pdf")
# Markers and line styles tell families apart where colours do not print.
_LOOK = {
    "reload": {"marker": "o", "linestyle": "-", "color": "#1b4f72", "markerfacecolor": "white"},
    "private": {"marker": "s", "linestyle": "--", "color": "#b9770e", "markerfacecolor": "none"},
    "shared": {"marker": "^", "linestyle": ":", "color": "#196f3d", "markerfacecolor": "none"},
    "mixed": {"marker": "D", "linestyle": "-.", "color": "#6c3483", "markerfacecolor": "none"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured trial with what a profile predicts for it."""

    case: str
    width: int
    reuse: str
    measured_us: float
    predicted_us: float | None


def main(args: argparse.Namespace) -> int:
    """Draw what was asked for."""
    out = Path(args.out)
    if out.suffix not in SUFFIXES:
        raise ReduceError(f"plot file {args.out!r} ends in {out.suffix!r}; needs {' or '.join(SUFFIXES)}")
    for name in args.records:
        if not Path(name).is_file():
            raise ReduceError(f"record file {name!r} is not there; needs one")
    if args.kind == "gains":
        count = gains(_summaries(args.records), out)
    elif args.kind == "roofline":
        from tirx_reduce.bench.grid_report import rows_of

        count = roofline(rows_of(args.records), out)
    else:
        points = [p for name in args.records for p in read_points(Path(name), args.calibration)]
        count = surface(points, args.case, out) if args.kind == "surface" else regret(points, out)
    print(json.dumps({"files": [str(out)], "points": count}) if args.json else f"{out}: {count} points")
    return 0


def read_points(path: Path, calibration: str | None) -> list[Point]:
    """The measured trials of a search, with predictions where a calibration is named."""
    from tirx_reduce.bench.records import read
    from tirx_reduce.bench.search import trials
    from tirx_reduce.bench.trial import label_us

    policy = None
    if calibration is not None:
        policy = _service(read(path)[0].data, calibration)
    points = []
    for trial in trials(read(path)):
        if trial["status"] != "measured":
            continue
        predicted = None
        if policy is not None:
            candidate = Candidate(**trial["candidate"])
            features = Features(**{**trial["features"], "incumbent": None})
            predicted = policy.reduction_cost(candidate, features, DeviceLimits()).kernel_score
        shape = "x".join(str(e) for e in trial["case"]["shape"])
        points.append(
            Point(
                case=f"{trial['case']['operator']} {shape}",
                width=trial["candidate"]["width"],
                reuse=trial["candidate"]["reuse"],
                measured_us=label_us(trial),
                predicted_us=predicted,
            )
        )
    if not points:
        raise ReduceError(f"{path} holds no measured trial; needs the records of a search")
    return points


def _service(environment: Mapping[str, Any], calibration: str) -> Any:
    from tirx_reduce.cost import calibration as files
    from tirx_reduce.cost.service import Service

    loaded = files.load(calibration)
    profiles = loaded if isinstance(loaded, tuple) else (loaded,)
    # By the device alone: a picture compares what was measured there, whatever TVM reads it now.
    mine = [p for p in profiles if getattr(p, "device", None) == environment["device"]]
    if not mine:
        raise ReduceError(
            f"{calibration} holds no profile of {environment['device']!r}; needs that of the records"
        )
    return Service().bind(mine[0])


def surface(points: Sequence[Point], case: str | None, out: Path) -> int:
    """Time over width for each reuse family of one case: measured points, predicted lines, both winners."""
    wanted = case or points[0].case
    mine = [p for p in points if p.case == wanted]
    if not mine:
        known = ", ".join(dict.fromkeys(p.case for p in points))
        raise ReduceError(f"no case {wanted!r} in the records (known: {known})")
    with _figure(out, 6.4, 4.2) as axes:
        for reuse in dict.fromkeys(p.reuse for p in mine):
            family = sorted((p for p in mine if p.reuse == reuse), key=lambda p: p.width)
            look = _LOOK[reuse]
            axes.plot(
                [p.width for p in family],
                [p.measured_us for p in family],
                **{**look, "linestyle": "none"},
                label=f"{reuse}, measured",
            )
            if all(p.predicted_us is not None for p in family):
                axes.plot(
                    [p.width for p in family],
                    [p.predicted_us for p in family],
                    color=look["color"],
                    linestyle=look["linestyle"],
                    label=f"{reuse}, predicted",
                )
        best = min(mine, key=lambda p: p.measured_us)
        _note(axes, "fastest", best, -16)
        if all(p.predicted_us is not None for p in mine):
            pick = min(mine, key=lambda p: p.predicted_us or 0.0)
            _note(axes, "model's pick", pick, 10)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({p.width for p in mine}), [str(w) for w in sorted({p.width for p in mine})])
        axes.margins(x=0.12, y=0.15)
        axes.set(title=wanted, xlabel="width (lanes of a row)", ylabel="GPU batch (µs)")
        axes.legend(fontsize=8)
    return len(mine)


def _note(axes: Any, text: str, point: Point, up: int) -> None:
    axes.annotate(
        text,
        (point.width, point.measured_us),
        textcoords="offset points",
        xytext=(0, up),
        ha="center",
        fontsize=8,
        annotation_clip=False,
    )


def regret(points: Sequence[Point], out: Path) -> int:
    """Predicted against measured; the title holds the regret of the picks."""
    priced = [p for p in points if p.predicted_us is not None]
    if not priced:
        raise ReduceError("no prediction to draw; needs --calibration with a profile of these records")
    with _figure(out, 5.2, 5.0) as axes:
        for reuse in dict.fromkeys(p.reuse for p in priced):
            family = [p for p in priced if p.reuse == reuse]
            axes.plot(
                [p.measured_us for p in family],
                [p.predicted_us for p in family],
                **{**_LOOK[reuse], "linestyle": "none"},
                alpha=0.8,
                label=reuse,
            )
        every = [us for p in priced for us in (p.measured_us, p.predicted_us) if us is not None]
        ends = [min(every), max(every)]
        axes.plot(ends, ends, color="black", linewidth=0.8, label="equal")
        axes.set(xscale="log", yscale="log", xlabel="measured GPU batch (µs)", ylabel="predicted (µs)")
        worst, mean = _regrets(priced)
        axes.set_title(
            f"regret of the picks: mean {100 * mean:.1f} %, largest {100 * worst:.1f} %", fontsize=10
        )
        axes.legend(fontsize=8)
    return len(priced)


def _regrets(points: Sequence[Point]) -> tuple[float, float]:
    found = []
    for case in dict.fromkeys(p.case for p in points):
        mine = [p for p in points if p.case == case]
        pick = min(mine, key=lambda p: p.predicted_us or 0.0)
        found.append(pick.measured_us / min(p.measured_us for p in mine) - 1)
    return max(found), sum(found) / len(found)


def gains(summaries: Sequence[Mapping[str, Any]], out: Path) -> int:
    """Median gain of each case with its observed range; 1 is the reference."""
    rows: list[tuple[str, float, float, float]] = []
    for summary in summaries:
        for entry in summary["cases"]:
            shape = "x".join(str(e) for e in entry["case"]["shape"])
            for name, phases in entry["gain"].items():
                if "gpu_batch" in phases:
                    g = phases["gpu_batch"]
                    label = f"{entry['case']['operator']} {shape} ({name})"
                    rows.append((label, g["median"], g["low"], g["high"]))
    if not rows:
        raise ReduceError("no gain to draw; needs a finished replay or comparison")
    with _figure(out, 6.4, 1.2 + 0.28 * len(rows)) as axes:
        for i, (_, middle, low, high) in enumerate(reversed(rows)):
            # Hollow where the range holds 1: not separable.
            hollow = low <= 1 <= high
            axes.plot([low, high], [i, i], color="black", linewidth=1.2)
            axes.plot(
                [middle], [i], marker="o", color="black", markerfacecolor="white" if hollow else "black"
            )
        axes.axvline(1.0, color="grey", linestyle="--", linewidth=0.8)
        axes.set_yticks(range(len(rows)), [label for label, *_ in reversed(rows)], fontsize=8)
        axes.set_xlabel(
            "GPU batch: reference ÷ candidate, above 1 is faster\n(median and observed range)", fontsize=9
        )
    return len(rows)


_OPERATOR_MARKS = ("o", "s", "^", "D", "v", "P", "X")


def roofline(rows: Sequence[Mapping[str, Any]], out: Path) -> int:
    """Rate of each line of the grid over the bytes that it moves, ours beside the copy of the same bytes."""
    lines = []
    for row in rows:
        ours = row["ours"].get(row["policy"], {})
        copy = row["peers"].get("copy", {})
        if "us" in ours and "us" in copy and row["copied_bytes"]:
            moved = float(row["copied_bytes"])
            lines.append((row["operator"], moved / 1e6, moved / ours["us"] / 1e3, moved / copy["us"] / 1e3))
    if not lines:
        raise ReduceError(
            "no line of the grid has both a kernel of ours and the copy; needs finished records"
        )
    with _figure(out, 6.8, 4.6) as axes:
        axes.plot(
            [line[1] for line in lines],
            [line[3] for line in lines],
            color="grey",
            linestyle="none",
            marker="_",
            markersize=12,
            label="copy of the bytes",
        )
        for mark, operator in zip(_OPERATOR_MARKS, dict.fromkeys(line[0] for line in lines), strict=False):
            mine = [line for line in lines if line[0] == operator]
            axes.plot(
                [line[1] for line in mine],
                [line[2] for line in mine],
                color="black",
                linestyle="none",
                marker=mark,
                markerfacecolor="none",
                label=operator,
            )
        axes.set(xscale="log", xlabel="bytes moved (MB)", ylabel="rate (GB/s)")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    return len(lines)


def _summaries(names: Sequence[str]) -> list[Mapping[str, Any]]:
    from tirx_reduce.bench.records import of_kind, read
    from tirx_reduce.bench.summary import SUMMARY

    return [s for name in names for s in of_kind(read(Path(name)), SUMMARY)]


@contextmanager
def _figure(out: Path, width: float, height: float) -> Iterator[Any]:
    try:
        import matplotlib
    except ImportError as error:
        raise ReduceError('matplotlib is not installed; needs: pip install "tirx-reduce[bench]"') from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    # The same records give the same file.
    with pyplot.rc_context({"svg.hashsalt": "tirx-reduce", "figure.dpi": 144}):
        figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
        try:
            yield axes
            axes.grid(alpha=0.25)
            metadata = {"Date": None} if out.suffix == ".svg" else None
            figure.savefig(out, metadata=metadata)
        finally:
            pyplot.close(figure)
