"""A study's records as Markdown tables: held-out gains, times, capacities, ablation. Every case, every range.

python -m tirx_reduce.bench.study_report records/
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tirx_reduce.bench.eager import NOTE
from tirx_reduce.bench.measure import DIAGNOSTIC
from tirx_reduce.bench.records import BadRecords, Record, file_digest, of_kind, read
from tirx_reduce.bench.replay import CANDIDATE, COLLECTED, GUARDED, PLAN, PROFILE, REFERENCE
from tirx_reduce.bench.search import TRIAL
from tirx_reduce.bench.shapes import shape_text
from tirx_reduce.bench.summary import SUMMARY
from tirx_reduce.bench.trial import label_us
from tirx_reduce.errors import ReduceError

GPU, HOST = "gpu_batch", "end_to_end_batch"
SINGLES = ("gpu_single", "end_to_end_single")


def study_report(folder: Path) -> str:
    """Markdown of the records in a folder, as far as they go.

    Raises
    ------
    BadRecords
        A file is bad, or there is no search.
    """
    search, replay = _records(folder, "search"), _records(folder, "replay")
    if search is None:
        raise BadRecords(f"{folder} holds no search.jsonl; needs one")
    parts = [_environment(search, folder), _search(search)]
    if replay is not None:
        parts += [_profile(replay), _held_out(replay), _times(replay), _collected(replay), _failures(replay)]
    ablation = _records(folder, "ablate")
    if ablation is not None:
        parts.append(_ablation(ablation))
    return "\n\n".join(part for part in parts if part) + "\n"


def _records(folder: Path, name: str) -> tuple[Record, ...] | None:
    for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"):
        if path.exists():
            return read(path)
    return None


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def _environment(records: Sequence[Record], folder: Path) -> str:
    first = records[0].data
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(first["libraries"].items()))
    lines = [
        "## Where and with what",
        "",
        f"{first['device']}, driver {first['driver']}, Python {first['python']}, {first['system']}; "
        f"{libraries}.",
        f"Commit `{first['commit']}`{' with changes' if first['dirty'] else ''}, package SHA-256 "
        f"`{first['package_sha256']}`, {first['date']}.",
        "",
    ]
    for name in ("search", "replay", "ablate"):
        for path in (folder / f"{name}.jsonl.gz", folder / f"{name}.jsonl"):
            if path.exists():
                lines.append(f"- `{path.name}`, records SHA-256 `{file_digest(path)}`")
                break
    return "\n".join(lines)


def _search(records: Sequence[Record]) -> str:
    trials = of_kind(records, TRIAL)
    counted = {s: sum(t["status"] == s for t in trials) for s in ("measured", "infeasible", "failed")}
    rows = []
    cases = list(dict.fromkeys(_label(t["case"]) for t in trials))
    for case in cases:
        mine = [t for t in trials if _label(t["case"]) == case and t["status"] == "measured"]
        if not mine:
            rows.append([case, "–", "–", "–", "–"])
            continue
        ordered = sorted(mine, key=label_us)
        rows.append(
            [
                case,
                str(len(mine)),
                _mapping(ordered[0]["candidate"]),
                _us(label_us(ordered[0])),
                _us(label_us(ordered[-1])),
            ]
        )
    text = ", ".join(f"{n} {s}" for s, n in counted.items())
    head = ["case", "valid trials", "best mapping", "best µs", "worst µs"]
    return f"## Training search\n\n{len(trials)} trials: {text}.\n\n" + _table(head, rows)


def _profile(records: Sequence[Record]) -> str:
    profile = of_kind(records, PROFILE)[0]
    c = profile["coefficients"]
    rows = [
        [
            f"{row['capacity']}{', selected' if row['capacity'] == c['capacity'] else ''}",
            _percent(row["mean_regret"]),
            _percent(row["max_regret"]),
            _percent(row["relative_rmse"]),
        ]
        for row in profile["capacities"]
    ]
    values = ", ".join(f"{name} = {c[name]:.4g}" for name in ("D", "R", "K", "P", "G", "W"))
    return "\n".join(
        [
            "## Calibration",
            "",
            f"{values}, capacity {c['capacity']:g} ({profile['unit']}); "
            f"{profile['trials']} trials, {profile['infeasible']} infeasible.",
            "Regret is that of leave-one-shape-out selection on the training records, no held-out result.",
            "",
            _table(["capacity prior", "CV mean regret", "CV maximum regret", "training relative RMSE"], rows),
        ]
    )


def _held_out(records: Sequence[Record]) -> str:
    frozen = of_kind(records, "freeze")
    summary = of_kind(records, SUMMARY)
    if not summary:
        return "## Held-out results\n\nThe replay was not finished."
    plans = {p["key"]: p["plan"] for p in of_kind(records, PLAN)}
    rows = []
    for entry in summary[0]["cases"]:
        keys = frozen[0]["plans"][_label(entry["case"])]
        chosen = plans[keys[CANDIDATE]]
        rows.append(
            [
                _label(entry["case"]),
                _mapping(plans[keys[REFERENCE]]["candidate"]),
                _mapping(chosen["candidate"]) + (" (extrapolated)" if chosen["extrapolated"] else ""),
                _at(entry["native_us"], REFERENCE),
                _at(entry["native_us"], CANDIDATE),
                _ratio(entry["gain"][CANDIDATE], GPU),
                _ratio(entry["gain"][CANDIDATE], HOST),
                entry["gain"][CANDIDATE].get(GPU, {}).get("verdict", "failed"),
                "incumbent" if entry[GUARDED] == REFERENCE else "model",
            ]
        )
    head = [
        "case", "old mapping", "model mapping", "old GPU µs", "model GPU µs", "GPU gain [range]",
        "E2E throughput gain [range]", "GPU verdict", "guarded takes",
    ]  # fmt: skip
    gains = [e["gain"][CANDIDATE][GPU]["median"] for e in summary[0]["cases"] if GPU in e["gain"][CANDIDATE]]
    guarded = [
        1.0 if e[GUARDED] == REFERENCE else e["gain"][CANDIDATE][GPU]["median"]
        for e in summary[0]["cases"]
        if GPU in e["gain"][CANDIDATE]
    ]
    closing = (
        f"Geometric mean of GPU gains: {_mean(gains):.3f}× for the model, {_mean(guarded):.3f}× guarded."
        if gains
        else "No pair was measured."
    )
    changes = " with changes" if frozen[0]["dirty"] else ""
    frozen_text = (
        f"Frozen at commit `{frozen[0]['commit']}`{changes} before any of these labels; calibration "
        f"`{frozen[0]['calibration_sha256'][:12]}`. Gains are medians of paired ratios with their observed "
        "range, no confidence bounds; a verdict needs every pair."
    )
    return f"## Held-out results\n\n{frozen_text}\n\n{_table(head, rows)}\n\n{closing}"


def _times(records: Sequence[Record]) -> str:
    summary = of_kind(records, SUMMARY)
    if not summary:
        return ""
    rows, ratios = [], []
    for entry in summary[0]["cases"]:
        native, torch = entry["native_us"][CANDIDATE], entry["torch_us"][CANDIDATE]
        rows.append(
            [
                _label(entry["case"]),
                *(
                    f"{_at({'x': native}, 'x', p)} / {_at({'x': torch}, 'x', p)}"
                    for p in (GPU, HOST, *SINGLES)
                ),
            ]
        )
        over = entry["torch_over_native"][CANDIDATE]
        ratios.append([_label(entry["case"]), *(_ratio(over, p) for p in (GPU, HOST, *SINGLES))])
    head = ["case", "GPU batch µs", "E2E batch µs", "GPU single µs", "E2E single µs"]
    heading = "## GPU and end-to-end times stay separate"
    note = f"Native / Torch, medians of per-round medians; the four phases are never subtracted. {NOTE}."
    probes = _probes(summary[0]["cases"])
    again = ["case", *(f"Torch / native, {h.removesuffix(' µs')}" for h in head[1:])]
    return f"{heading}\n\n{note}\n\n{_table(head, rows)}\n\n{_table(again, ratios)}{probes}"


def _probes(entries: Sequence[Mapping[str, Any]]) -> str:
    """Instrumented against plain GPU batch times, where they were taken: a diagnostic, no correction."""
    rows = []
    for entry in entries:
        cells = [
            f"{times[DIAGNOSTIC] / times[GPU]:.3f}" if DIAGNOSTIC in times and GPU in times else "–"
            for times in (entry["native_us"][CANDIDATE], entry["torch_us"][CANDIDATE])
        ]
        if cells != ["–", "–"]:
            rows.append([_label(entry["case"]), *cells])
    if not rows:
        return ""
    head = ["case", "native probe / control", "Torch probe / control"]
    return (
        f"\n\nInstrumented timing is a diagnostic; it selects and corrects nothing.\n\n{_table(head, rows)}"
    )


def _collected(records: Sequence[Record]) -> str:
    rows = [
        [
            _label(r["case"]),
            r["role"],
            f"{r['verified']['max_abs']:.3g}" if "verified" in r else "–",
            r["status"] if r["status"] == "measured" else r.get("reason", r["status"]),
        ]
        for r in of_kind(records, COLLECTED)
    ]
    head = ["case", "plan", "largest error", "status"]
    return (
        "## Plan collection\n\nExecuted and verified before the freeze; no timing selected anything.\n\n"
        + _table(head, rows)
    )


def _failures(records: Sequence[Record]) -> str:
    summary = of_kind(records, SUMMARY)
    if not summary:
        return ""
    lines = [
        f"- {_label(e['case'])}, round {f['round']}, {f['variant']}, {f['side']}: {f['reason']}"
        for e in summary[0]["cases"]
        for f in e["failures"]
    ]
    thrown = sum(e["rejected_samples"] for e in summary[0]["cases"])
    text = "\n".join(lines) if lines else "None."
    return f"## Failures\n\n{text} {thrown} samples were thrown out as impossible; they stay in the records."


def _ablation(records: Sequence[Record]) -> str:
    summary = of_kind(records, SUMMARY)
    if not summary:
        return "## Ablation\n\nNot finished."
    rows = []
    for entry in summary[0]["cases"]:
        for name, times in entry["native_us"].items():
            gain = entry["gain"].get(name)
            rows.append(
                [
                    _label(entry["case"]),
                    name,
                    _us(times[GPU]) if GPU in times else "–",
                    _ratio(gain, GPU) if gain is not None else "1 (reference)",
                    gain.get(GPU, {}).get("verdict", "failed") if gain is not None else "",
                ]
            )
    head = ["case", "corner", "GPU µs", "GPU gain over the first [range]", "verdict"]
    return "## Width and reuse apart\n\nThe profile stays frozen; this selects nothing.\n\n" + _table(
        head, rows
    )


def _label(case: Mapping[str, Any]) -> str:
    text = f"{case['operator']} {shape_text(tuple(case['shape']))}"
    return text if case["dtype"] == "float32" else f"{text} {case['dtype']}"


def _mapping(candidate: Mapping[str, Any]) -> str:
    return f"W={candidate['width']} {candidate['reuse']}"


def _at(times: Mapping[str, Any], name: str, phase: str = GPU) -> str:
    found = times.get(name, {})
    return _us(found[phase]) if phase in found else "–"


def _us(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _ratio(gains: Mapping[str, Any], phase: str) -> str:
    if phase not in gains:
        return "–"
    g = gains[phase]
    return f"{g['median']:.3f}× [{g['low']:.3f}, {g['high']:.3f}]"


def _mean(values: Sequence[float]) -> float:
    product = 1.0
    for value in values:
        product *= value
    return float(product ** (1 / len(values)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables of a folder."""
    parser = argparse.ArgumentParser(prog="study_report", description="A study's records as Markdown tables.")
    parser.add_argument("folder", type=Path)
    try:
        print(study_report(parser.parse_args(arguments).folder), end="")
    except ReduceError as error:
        print(f"study_report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
