"""The audit: records, a calibration and plans in, a receipt out. It trusts none of the code that made them.

A program of its own, on Python's standard library alone: line hashes and their chain, demand by an oracle of
its own, prices, choices over all widths and reuses, the fit, medians, ratios and the order of the freeze.
What does not hold is named with its place, and the exit status is 1.

    python audit.py calibration.json search.jsonl.gz replay.jsonl.gz
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import math
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

CAPACITIES = (64, 128, 256, 512, 1024, 2048)
NAMES = ("D", "R", "K", "P", "G", "W")
SUBGROUP, WIDTHS = 32, tuple(range(32, 1025, 32))
PHASES = ("gpu_batch", "end_to_end_batch", "gpu_single", "end_to_end_single")
CLOSE = 1e-9
"""Relative difference that arithmetic in another order may leave."""
SLOPE = 1e-8
"""What rounding leaves of a slope that is 0."""
FIT_CLOSE = 1e-6
"""The same of a fit by normal equations against one by orthogonal factors."""
# Walks over a row, collectives, column vectors. A walk reads the row, unless it is kept; one output.
OPERATORS = {
    "softmax": (3, 2, 0),
    "log_softmax": (3, 2, 0),
    "rms_norm": (2, 1, 1),
    "layer_norm": (3, 2, 2),
}
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
NEITHER = (
    "neither a search nor a replay; needs records of one of them (tirx-reduce report prints those of a grid)"
)
NOT_CHECKED = (
    "the outputs themselves: only the verdicts on them are recorded",
    "that the timers told the truth, and that the device was the one named",
    "that libraries of the recorded hashes made what is recorded",
    "that the named commit holds the package of the recorded hash",
)


class Failed(Exception):
    """Something does not hold; the text names the place."""


class Unreadable(Exception):
    """A file is not there, or not of its format; the text names it."""


def need(holds: bool, place: str, what: str) -> None:
    """Fail with the place, unless it holds."""
    if not holds:
        raise Failed(f"{place}: {what}")


def near(a: float, b: float, tolerance: float = CLOSE) -> bool:
    """Whether two numbers agree."""
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-15)


# --- records ---


def canonical(value: Any) -> str:
    """JSON text that hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def sha256(text: str | bytes) -> str:
    """Hash of a text."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def content(path: Path) -> bytes:
    """Bytes of a file, unpacked."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def read_profiles(path: Path) -> list[dict[str, Any]]:
    """The profiles of a calibration file."""
    try:
        data = json.loads(content(path))
    except ValueError as error:
        raise Unreadable(f"{path} is not JSON: {error}") from error
    need(
        isinstance(data, dict), str(path), f"it holds a {type(data).__name__}; needs an object with profiles"
    )
    need(data.get("format") == 1, str(path), f"format {data.get('format')!r}; needs 1")
    profiles = data.get("profiles")
    need(isinstance(profiles, list), str(path), "it holds no list of profiles")
    wanted = ("coefficients", "device", "records_sha256")
    for number, profile in enumerate(profiles):
        lacks = [n for n in wanted if not isinstance(profile, dict) or n not in profile]
        need(not lacks, str(path), f"profile {number} lacks {', '.join(lacks)}")
    return list(profiles)


def read(path: Path) -> list[dict[str, Any]]:
    """Every line, its hash and its place in the chain checked."""
    text = content(path)
    need(text.endswith(b"\n"), str(path), "the last line is cut short")
    chain, records = "0" * 64, []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        place = f"{path.name}, line {number}"
        try:
            body = json.loads(line)
            stated = body.pop("sha256")
        except (ValueError, KeyError, AttributeError) as error:
            raise Failed(f"{place}: not a record ({error})") from error
        need(sha256(canonical(body)) == stated, place, "its content does not have the hash that it states")
        need(body["chain"] == chain, place, "it does not follow the line before")
        need(body["format"] == 1, place, f"format {body['format']!r}")
        chain = stated
        records.append({**body, "place": place})
    need(bool(records), str(path), "no record")
    need(records[0]["kind"] == "environment", records[0]["place"], "the first record is no environment")
    # Grids and counters are measured without a design: nothing in them was promised beforehand.
    need(any(r["kind"] == "design" for r in records), path.name, NEITHER)
    need(records[-1]["kind"] == "end", records[-1]["place"], "the run did not come to its end")
    first = records[0]["data"]
    for record in records:
        if record["kind"] == "environment":
            for name in ("device", "driver", "tvm", "package_sha256"):
                need(record["data"][name] == first[name], record["place"], f"another {name} than line 1")
    return records


def of(records: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Records of one kind."""
    return [r for r in records if r["kind"] == kind]


def one(records: Iterable[dict[str, Any]], kind: str, where: str) -> dict[str, Any]:
    """The only record of a kind."""
    found = of(records, kind)
    need(len(found) == 1, where, f"{len(found)} records of kind {kind!r}; needs one")
    return found[0]


# --- demand, prices, choices ---


def label(case: dict[str, Any]) -> str:
    """Name of a case."""
    text = f"{case['operator']} {'x'.join(map(str, case['shape']))}"
    return text if case["dtype"] == "float32" else f"{text} {case['dtype']}"


def demand(case: dict[str, Any], candidate: dict[str, Any]) -> dict[str, int]:
    """Demand of a candidate by the oracle: from the operator, not from its code."""
    need(case["operator"] in OPERATORS, label(case), f"the oracle knows only {', '.join(OPERATORS)}")
    passes, collectives, vectors = OPERATORS[case["operator"]]
    rows, columns = math.prod(case["shape"][:-1]), case["shape"][-1]
    width, vector = candidate["width"], candidate["vector"]
    lane = -(-columns // (width * vector)) * vector
    kept = candidate["reuse"] == "private"
    size = SIZES[case["dtype"]]
    column = size * ((1 if kept else passes) + vectors + 1)
    return {
        "rows": rows,
        "columns": columns,
        "passes": passes,
        "scalar_rounds": passes * lane,
        "reductions": collectives,
        "subgroups_per_program": width // SUBGROUP,
        "programs": rows,
        "threadgroups": -(-rows // candidate["packing"]) * candidate["splits"],
        "program_global_access_bytes": columns * column,
        "worker_global_access_bytes": lane * column,
        "worker_private_access_bytes": lane * 4 * (1 + passes) if kept else 0,
        "storage_bytes": size,
        "accumulation_bytes": 4,
    }


def private_scalars(case: dict[str, Any], candidate: dict[str, Any]) -> int:
    """Values that a lane keeps."""
    columns, step = case["shape"][-1], candidate["width"] * candidate["vector"]
    return int(-(-columns // step) * candidate["vector"])


def terms(f: dict[str, int], candidate: dict[str, Any], capacity: float) -> tuple[float, ...]:
    """What the six coefficients are multiplied by."""
    subgroups = f["threadgroups"] * f["subgroups_per_program"] * candidate["packing"]
    waves = max(1.0, subgroups / capacity)
    return (
        1.0,
        f["scalar_rounds"] * waves,
        f["reductions"] * f["subgroups_per_program"] * waves,
        f["worker_private_access_bytes"] * waves,
        float(f["programs"] * f["program_global_access_bytes"]),
        float(f["worker_global_access_bytes"]),
    )


def service_price(c: dict[str, float], f: dict[str, int], candidate: dict[str, Any]) -> float:
    """Price of the service objective."""
    return sum(c[n] * t for n, t in zip(NAMES, terms(f, candidate, c["capacity"]), strict=True))


def analytic_price(f: dict[str, int], candidate: dict[str, Any]) -> float:
    """Price of the incumbent's objective."""
    packets = max(1, -(-(f["columns"] // candidate["vector"]) // candidate["width"]))
    local = 2 * f["passes"] * packets * candidate["vector"] + 5 * f["reductions"] * f["subgroups_per_program"]
    return float(local * -(-f["programs"] // 64))


def rank(candidate: dict[str, Any]) -> tuple[int, int]:
    """Order among equal prices."""
    return candidate["width"], ("reload", "private", "shared", "mixed").index(candidate["reuse"])


def offers(
    case: dict[str, Any], like: dict[str, Any], budget: int, families: Sequence[str]
) -> list[dict[str, Any]]:
    """Every legal candidate: 32 widths in each reuse family, all else as in `like`."""
    found = []
    for width in WIDTHS:
        for reuse in families:
            c = {**like, "width": width, "reuse": reuse}
            if reuse == "private" and private_scalars(case, c) > budget:
                continue
            found.append(c)
    return found


def check_plan(record: dict[str, Any], case: dict[str, Any], role: str, profile: dict[str, Any]) -> None:
    """Key, demand, price of every candidate, and the choice among them."""
    place, plan = f"{record['place']} ({label(case)}, {role})", record["data"]["plan"]
    like, budget = plan["candidate"], plan["limits"]["private_scalars"]
    for name, value in like.items():
        # Fields that later versions add are off at 0.
        plain = {"packing": 1, "unroll": 1, "splits": 1, "rows": 1}.get(name, 0)
        need(name in ("width", "vector", "reuse") or value == plain, place, f"{name} is {value!r}")
    need(plan["limits"]["subgroup_size"] == SUBGROUP, place, "another subgroup size than 32")
    incumbents = offers(case, like, budget, ("reload",))
    by_analytic = min(incumbents, key=lambda c: (analytic_price(demand(case, c), c), rank(c)))
    if role == "reference":
        families: tuple[str, ...] = ("reload",)
    else:
        families = ("reload", "private")
    coefficients, error = profile["coefficients"], profile["max_regret"]

    def price(c: dict[str, Any]) -> float:
        if role == "reference":
            return analytic_price(demand(case, c), c)
        plain = service_price(coefficients, demand(case, c), c)
        if plan["policy"] != "guarded" or c == by_analytic:
            return plain
        return math.nextafter(plain * (1.0 + error), math.inf)

    legal = offers(case, like, budget, families)
    stated = {canonical(plan["candidate"]): plan["estimate"]}
    refused: dict[str, Any] = {}
    for candidate, verdict in plan["rejected"]:
        (refused if isinstance(verdict, str) else stated)[canonical(candidate)] = verdict
    need({canonical(c) for c in legal} == set(stated), place, "priced candidates are not the legal ones")
    for c in legal:
        said = stated[canonical(c)]["kernel_score"]
        need(
            near(said, price(c)),
            place,
            f"width {c['width']} {c['reuse']} is priced {said!r}, not {price(c)!r}",
        )
    best = min(legal, key=lambda c: (stated[canonical(c)]["kernel_score"], rank(c)))
    need(best == plan["candidate"], place, "the chosen candidate is not the cheapest")
    need(plan["incumbent"] == by_analytic, place, "the incumbent is not that of the default policy")
    have = {k: v for k, v in plan["features"].items() if k != "incumbent"}
    need(have == demand(case, plan["candidate"]), place, "demand is not what the oracle counts")
    if role != "reference":
        new = plan["candidate"]["width"] not in profile["widths"] or like["vector"] not in profile["vectors"]
        need(plan["extrapolated"] == new, place, "extrapolation is not marked as it is")


def _plan_text(plan: dict[str, Any]) -> str:
    return json.dumps(plan, sort_keys=True, separators=(",", ":"), allow_nan=False)


# --- samples ---


def median(values: Sequence[float]) -> float:
    """Middle value."""
    ordered, n = sorted(values), len(values)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


def check_result(result: dict[str, Any], samples: int, place: str) -> None:
    """A measured result is verified, and its samples are numbers that can be true."""
    if result["status"] != "measured":
        need(bool(result.get("reason")), place, "it failed without a reason")
        return
    need(result["verified"]["ok"] is True, place, "it was timed without being right")
    floor = result["timing"]["floor_us"]
    for name, phase in result["timing"]["phases"].items():
        where = f"{place}, {name}"
        for sample in phase["samples_us"]:
            fine = (
                isinstance(sample, int | float) and math.isfinite(sample) and sample > 0 and sample >= floor
            )
            need(fine, where, f"sample {sample!r} cannot be true")
        if name in PHASES:
            taken = len(phase["samples_us"]) + len(phase["rejected"])
            need(taken == samples, where, f"{taken} samples; the design has {samples}")


def check_sources(records: list[dict[str, Any]]) -> set[str]:
    """Every emitted text has its hash."""
    found = set()
    for record in of(records, "source"):
        data = record["data"]
        need(sha256(data["text"]) == data["sha256"], record["place"], "the text does not have its hash")
        found.add(data["sha256"])
    return found


# --- the search and the fit ---


def check_search(records: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any], float]]:
    """Completeness, demand and labels of the trials; gives (case, candidate, label) of each measured one."""
    design = one(records, "design", records[0]["place"])["data"]
    budget = 64 if design["limits"] is None else design["limits"]["private_scalars"]
    wanted = {canonical([case, c]) for case in design["cohort"] for c in design["candidates"]}
    seen: set[str] = set()
    measured = []
    texts = check_sources(records)
    for record in of(records, "trial"):
        t = record["data"]
        place = (
            f"{record['place']} ({label(t['case'])}, W={t['candidate']['width']} {t['candidate']['reuse']})"
        )
        key = canonical([t["case"], t["candidate"]])
        need(key in wanted and key not in seen, place, "not in the design, or twice in the file")
        seen.add(key)
        over = t["candidate"]["reuse"] == "private" and private_scalars(t["case"], t["candidate"]) > budget
        need(
            (t["status"] == "infeasible") == over,
            place,
            f"{t['status']}, against the private budget of {budget}",
        )
        if over:
            need("timing" not in t, place, "an infeasible trial has a label")
            continue
        need(
            t["features"] == demand(t["case"], t["candidate"]), place, "demand is not what the oracle counts"
        )
        check_result(t, design["options"]["samples"], place)
        if t["status"] == "measured":
            need(t["source_sha256"] in texts, place, "its emitted text is not in the file")
            samples = t["timing"]["phases"]["gpu_batch"]["samples_us"]
            measured.append((t["case"], t["candidate"], median(samples)))
    need(seen == wanted, records[0]["place"], f"{len(wanted - seen)} trials of the design are missing")
    return measured


def solve(rows: Sequence[tuple[tuple[float, ...], float]]) -> list[float]:
    """Non-negative least squares of relative error, by normal equations over every active set."""
    relative = [[t / y for t in row] for row, y in rows]
    scale = [math.sqrt(math.fsum(r[i] * r[i] for r in relative)) for i in range(6)]
    live = [i for i in range(6) if scale[i] > 0]
    unit = [[r[i] / scale[i] if scale[i] else 0.0 for i in range(6)] for r in relative]
    gram = [[math.fsum(u[i] * u[j] for u in unit) for j in range(6)] for i in range(6)]
    right = [math.fsum(u[i] for u in unit) for i in range(6)]
    best, least = [0.0] * 6, float(len(rows))
    for size in range(1, len(live) + 1):
        for active in itertools.combinations(live, size):
            x = _linear([[gram[i][j] for j in active] for i in active], [right[i] for i in active])
            if x is None or min(x) < 0:
                continue
            error = math.fsum(
                (math.fsum(u[i] * v for i, v in zip(active, x, strict=True)) - 1.0) ** 2 for u in unit
            )
            if error < least - 1e-14 * len(rows):
                least, best = error, [0.0] * 6
                for i, v in zip(active, x, strict=True):
                    best[i] = v
    return [b / s if s else 0.0 for b, s in zip(best, scale, strict=True)]


def slopes(rows: Sequence[tuple[tuple[float, ...], float]], x: Sequence[float]) -> list[float]:
    """Slope of the squared relative error along each coefficient, on columns scaled to length 1."""
    relative = [[t / y for t in row] for row, y in rows]
    errors = [math.fsum(v * t for v, t in zip(x, r, strict=True)) - 1.0 for r in relative]
    found = []
    for i in range(6):
        length = math.sqrt(math.fsum(r[i] * r[i] for r in relative))
        found.append(
            math.fsum(r[i] * e for r, e in zip(relative, errors, strict=True)) / length if length else 0.0
        )
    return found


def _linear(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivoting; None where the matrix is singular."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    for k in range(n):
        pivot = max(range(k, n), key=lambda i: abs(rows[i][k]))
        if abs(rows[pivot][k]) < 1e-13:
            return None
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(k + 1, n):
            factor = rows[i][k] / rows[k][k]
            for j in range(k, n + 1):
                rows[i][j] -= factor * rows[k][j]
    x = [0.0] * n
    for k in reversed(range(n)):
        x[k] = (rows[k][n] - math.fsum(rows[k][j] * x[j] for j in range(k + 1, n))) / rows[k][k]
    return x


def regrets(
    trials: Sequence[tuple[dict[str, Any], dict[str, Any], float]], capacity: int
) -> dict[str, float]:
    """Leave-one-shape-out regret of each case."""
    found = {}
    for shape in {tuple(case["shape"]) for case, _, _ in trials}:
        x = solve([(terms(demand(a, c), c, capacity), y) for a, c, y in trials if tuple(a["shape"]) != shape])
        cases = {label(a): a for a, _, _ in trials if tuple(a["shape"]) == shape}
        for name, case in cases.items():
            group = [(c, y) for a, c, y in trials if a == case]

            def price(c: dict[str, Any], case: dict[str, Any] = case, x: list[float] = x) -> float:
                return math.fsum(v * t for v, t in zip(x, terms(demand(case, c), c, capacity), strict=True))

            _, picked = min(group, key=lambda g: (price(g[0]), rank(g[0])))
            found[name] = picked / min(y for _, y in group) - 1
    return found


def check_profile(profile: dict[str, Any], records: list[dict[str, Any]], path: Path) -> None:
    """The fit, done again from the raw samples by other means."""
    place = f"profile ({profile['target_kind']}, {profile['device']}, {profile['dtype']})"
    need(
        profile["records_sha256"] == sha256(content(path)),
        place,
        f"records_sha256 is not that of {path.name}",
    )
    trials = check_search(records)
    environment = records[0]["data"]
    for name, value in {"device": environment["device"], "tvm_version": environment["tvm"]}.items():
        need(profile[name] == value, place, f"{name} is not that of the records")
    need(profile["driver"] == environment["driver"], place, "driver is not that of the records")
    counted = {
        "trials": len(trials),
        "infeasible": sum(t["data"]["status"] == "infeasible" for t in of(records, "trial")),
        "widths": sorted({c["width"] for _, c, _ in trials}),
        "vectors": sorted({c["vector"] for _, c, _ in trials}),
        "families": sorted({c["reuse"] for _, c, _ in trials}, key=lambda r: rank({"width": 0, "reuse": r})),
        "operators": sorted({a["operator"] for a, _, _ in trials}),
        "shapes": sorted([math.prod(s[:-1]), s[-1]] for s in {tuple(a["shape"]) for a, _, _ in trials}),
    }
    for name, value in counted.items():
        need(profile[name] == value, place, f"{name} is {profile[name]!r}; the records say {value!r}")
    table = {row["capacity"]: row for row in profile["capacities"]}
    need(tuple(sorted(table)) == CAPACITIES, place, "the table is not of the six capacities")
    for capacity, row in table.items():
        by_case = regrets(trials, capacity)
        mean = math.fsum(by_case.values()) / len(by_case)
        x = solve([(terms(demand(a, c), c, capacity), y) for a, c, y in trials])
        errors = [
            math.fsum(v * t for v, t in zip(x, terms(demand(a, c), c, capacity), strict=True)) / y - 1
            for a, c, y in trials
        ]
        rmse = math.sqrt(math.fsum(e * e for e in errors) / len(errors))
        for name, value in {
            "mean_regret": mean,
            "max_regret": max(by_case.values()),
            "relative_rmse": rmse,
        }.items():
            need(
                math.isclose(row[name], value, rel_tol=FIT_CLOSE, abs_tol=1e-9),
                f"{place}, capacity {capacity}",
                f"{name} is {row[name]!r}; done again it is {value!r}",
            )
    c = profile["coefficients"]
    chosen = min(table.values(), key=lambda row: (row["mean_regret"], row["capacity"]))
    need(c["capacity"] == chosen["capacity"], place, "the capacity is not that of least mean regret")
    for name in ("mean_regret", "max_regret"):
        need(profile[name] == chosen[name], place, f"{name} is not that of the selected capacity")
    rows = [(terms(demand(a, d), d, c["capacity"]), y) for a, d, y in trials]
    for name, slope in zip(NAMES, slopes(rows, [c[name] for name in NAMES]), strict=True):
        # At the least error nothing is to be gained by moving a coefficient, or only below 0.
        best = slope > -SLOPE if c[name] == 0 else abs(slope) < SLOPE
        need(
            best and c[name] >= 0,
            place,
            f"coefficient {name} is {c[name]!r}, which is not that of least error",
        )


# --- the replay ---


def check_replay(records: list[dict[str, Any]], profiles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Freeze before labels, plans, completeness, samples, summary; gives the summary, done again."""
    where = records[0]["place"]
    design = one(records, "design", where)["data"]
    profile = one(records, "profile", where)["data"]
    need(profile in profiles, where, "its profile is not in the calibration")
    frozen_at = one(records, "freeze", where)
    frozen, place = frozen_at["data"], frozen_at["place"]
    need(frozen["calibration_sha256"] == sha256(canonical(profile)), place, "it froze another calibration")
    need(frozen["design_sha256"] == sha256(canonical(design)), place, "it froze another design")
    need(frozen["cohort"] == design["cohort"], place, "it froze another cohort")
    for record in of(records, "environment"):
        for name in ("package_sha256", "library_sha256"):
            need(record["data"][name] == frozen[name], record["place"], f"another {name} than the frozen one")
    first = min((records.index(r) for r in of(records, "measurement")), default=len(records))
    need(records.index(frozen_at) < first, place, "it stands after a held-out label")
    trained = {tuple(s) for s in profile["shapes"]}
    texts = check_sources(records)
    plans = {r["data"]["key"]: r for r in of(records, "plan")}
    for key, record in plans.items():
        need(
            sha256(_plan_text(record["data"]["plan"])) == key,
            record["place"],
            "the plan does not have its key",
        )
    for case in design["cohort"]:
        rows = (math.prod(case["shape"][:-1]), case["shape"][-1])
        need(rows not in trained, place, f"{label(case)} is a training shape")
        for role in ("reference", "candidate", "guarded"):
            key = frozen["plans"][label(case)][role]
            need(key in plans, place, f"the plan of {label(case)}, {role} is not in the file")
            wanted = {"reference": design["reference"], "candidate": design["policy"], "guarded": role}[role]
            need(
                plans[key]["data"]["plan"]["policy"] == wanted, plans[key]["place"], "made by another policy"
            )
            check_plan(plans[key], case, role, profile)
            need(
                frozen["sources"][key] in texts,
                place,
                f"the text of {label(case)}, {role} is not in the file",
            )
    for record in of(records, "collected"):
        check_result(record["data"], design["collect_options"]["samples"], record["place"])
    _check_measurements(records, design, frozen)
    again = summarize([r["data"] for r in of(records, "measurement")], design["cohort"])
    for case in design["cohort"]:
        chosen = {
            role: plans[key]["data"]["plan"]["candidate"]
            for role, key in frozen["plans"][label(case)].items()
        }
        two = [role for role in ("reference", "candidate") if chosen[role] == chosen["guarded"]]
        need(bool(two), place, f"{label(case)}: guarded takes neither of the two")
        again[label(case)]["guarded"] = two[0]
    stated = one(records, "summary", where)
    _same(stated["data"], again, stated["place"])
    return again


def _check_measurements(
    records: list[dict[str, Any]], design: dict[str, Any], frozen: dict[str, Any]
) -> None:
    wanted = {
        canonical([n, case, role])
        for n in range(design["rounds"])
        for case in design["cohort"]
        for role in ("reference", "candidate")
    }
    seen: set[str] = set()
    for record in of(records, "measurement"):
        m, place = (
            record["data"],
            f"{record['place']} ({label(record['data']['case'])}, {record['data']['variant']})",
        )
        key = canonical([m["round"], m["case"], m["variant"]])
        need(key in wanted and key not in seen, place, "not in the design, or twice in the file")
        seen.add(key)
        need(m["plan_key"] == frozen["plans"][label(m["case"])][m["variant"]], place, "not the frozen plan")
        for side in ("native", "torch"):
            if m[side] is not None and m[side]["status"] != "absent":
                check_result(m[side], design["replay_options"]["samples"], f"{place}, {side}")
        if m["native"]["status"] == "measured":
            same = m["native"]["source_sha256"] == frozen["sources"][m["plan_key"]]
            need(same, place, "the emitted text is not the frozen one")
    need(seen == wanted, records[0]["place"], f"{len(wanted - seen)} measurements of the design are missing")


def summarize(measurements: Sequence[dict[str, Any]], cohort: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and paired ratios from the raw samples: {case: {what: {phase: value}}}."""
    found: dict[str, Any] = {}
    for case in cohort:
        by = {
            (role, side): _medians(
                [m for m in measurements if m["case"] == case and m["variant"] == role], side
            )
            for role in ("reference", "candidate")
            for side in ("native", "torch")
        }
        entry: dict[str, Any] = {"native_us": {}, "torch_us": {}, "gain": {}, "torch_over_native": {}}
        for (role, side), phases in by.items():
            entry[f"{side}_us"][role] = {p: median(list(r.values())) for p, r in phases.items() if r}
        entry["gain"]["candidate"] = _ratios(by["reference", "native"], by["candidate", "native"])
        for role in ("reference", "candidate"):
            entry["torch_over_native"][role] = _ratios(by[role, "torch"], by[role, "native"])
        found[label(case)] = entry
    return found


def _medians(measurements: Sequence[dict[str, Any]], side: str) -> dict[str, dict[int, float]]:
    return {
        phase: {
            m["round"]: median(m[side]["timing"]["phases"][phase]["samples_us"])
            for m in measurements
            if m[side] is not None
            and m[side]["status"] == "measured"
            and phase in m[side]["timing"]["phases"]
        }
        for phase in (*PHASES, "instrumented")
    }


def _ratios(
    over: dict[str, dict[int, float]], under: dict[str, dict[int, float]]
) -> dict[str, dict[str, Any]]:
    found = {}
    for phase in over:
        both = sorted(set(over[phase]) & set(under[phase]))
        if not both:
            continue
        ratios = [over[phase][r] / under[phase][r] for r in both]
        agree = "faster" if min(ratios) > 1 else "slower" if max(ratios) < 1 else "not separable"
        found[phase] = {
            "ratios": ratios,
            "median": median(ratios),
            "low": min(ratios),
            "high": max(ratios),
            "verdict": agree if len(ratios) >= 3 else "not separable",
        }
    return found


def _same(stated: dict[str, Any], again: dict[str, Any], place: str) -> None:
    need(
        [label(c["case"]) for c in stated["cases"]] == list(again),
        place,
        "cases are missing from the summary",
    )
    for case in stated["cases"]:
        for what, value in again[label(case["case"])].items():
            where = f"{place} ({label(case['case'])}), {what}"
            need(_alike(case[what], value), where, "it is not what the raw samples give")


def _alike(a: Any, b: Any) -> bool:
    if isinstance(b, dict):
        return isinstance(a, dict) and set(a) == set(b) and all(_alike(a[k], b[k]) for k in b)
    if isinstance(b, list):
        return isinstance(a, list) and len(a) == len(b) and all(map(_alike, a, b))
    return near(a, b) if isinstance(b, float) else a == b


# --- the receipt ---


def audit(calibration: Path, files: Sequence[Path]) -> list[str]:
    """The receipt, line by line.

    Raises
    ------
    Failed
        At the first thing that does not hold, with its place.
    Unreadable
        A file is not there, or not of its format.
    """
    profiles = read_profiles(calibration)
    receipt = [f"{calibration.name}: {len(profiles)} profiles, sha256 {sha256(content(calibration))}"]
    fitted: set[str] = set()
    for path in files:
        try:
            receipt += _file_lines(path, calibration, profiles, fitted)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            what = f"{type(error).__name__} {error}"
            raise Failed(
                f"{path.name}, or its profile in {calibration.name}, lacks what it needs or holds something else: "
                f"{what}"
            ) from error
    untold = [p["device"] for p in profiles if canonical(p) not in fitted]
    receipt += [f"not audited: the profile of {device}, whose records were not given" for device in untold]
    return [*receipt, "not checked:", *(f"  {line}" for line in NOT_CHECKED), "PASS"]


def _file_lines(
    path: Path, calibration: Path, profiles: Sequence[dict[str, Any]], fitted: set[str]
) -> list[str]:
    """What one record file shows; a profile that was fitted on it goes into `fitted`."""
    records = read(path)
    kinds = {r["kind"] for r in records}
    lines = [f"{path.name}: {len(records)} records, chain whole, sha256 {sha256(content(path))}"]
    if "trial" in kinds:
        mine = [p for p in profiles if p["records_sha256"] == sha256(content(path))]
        need(
            len(mine) == 1,
            path.name,
            f"{len(mine)} profiles of {calibration.name} were fitted on it; needs one",
        )
        (p,) = mine
        check_profile(p, records, path)
        fitted.add(canonical(p))
        return [
            *lines,
            f"  {p['trials']} trials, {p['infeasible']} infeasible; demand, labels, 6 capacities and "
            f"coefficients done again; regret mean {p['mean_regret']:.2%}, maximum {p['max_regret']:.2%}",
        ]
    if "freeze" in kinds:
        return lines + _replay_lines(records, check_replay(records, profiles))
    raise Failed(f"{path.name}: {NEITHER}")


def _replay_lines(records: list[dict[str, Any]], again: dict[str, Any]) -> list[str]:
    frozen = one(records, "freeze", "")["data"]
    dirty = " (dirty)" if frozen["dirty"] else ""
    lines = [
        f"  frozen at commit {frozen['commit']}{dirty}; 32 widths × 2 reuses priced again for every plan"
    ]
    for name, case in again.items():
        gain = case["gain"]["candidate"].get("gpu_batch")
        if gain is None:
            lines.append(f"  {name}: no pair")
            continue
        lines.append(
            f"  {name}: GPU gain {gain['median']:.3f}× [{gain['low']:.3f}, {gain['high']:.3f}], "
            f"{gain['verdict']}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the receipt; 1 where something does not hold, 2 where a file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="audit", description="Check records without the code that made them."
    )
    parser.add_argument("calibration", type=Path)
    parser.add_argument("records", type=Path, nargs="+", help="search and replay files, plain or .gz")
    given = parser.parse_args(arguments)
    try:
        for line in audit(given.calibration, given.records):
            print(line)
    except Failed as failed:
        print(f"FAIL {failed}")
        return 1
    except Unreadable as error:
        print(f"cannot be read: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
