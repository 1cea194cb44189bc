"""What is installed, which devices run, what was read or assumed, and the command that mends each fault."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tirx_reduce.bench.terminal import Style, wants_colour
from tirx_reduce.errors import ReduceError

OK, NOTE, FAULT = "ok", "note", "fault"

TVM = "0.27"
FFI_GOOD = (0, 1, 14)
FFI_BAD = (0, 1, 15)
MEND_TVM = 'pip install "apache-tvm==0.27.*" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'
MEND_FFI = 'pip install "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: str
    """`ok`; `note`, where something is missing that not everybody needs; `fault`, what must be mended."""
    seen: str
    mend: str = ""
    """The command that mends it."""


Version = Callable[[str], str | None]


def installed(name: str) -> str | None:
    """The installed version of a distribution, None where it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 1, 14) of `0.1.14.post1`."""
    out = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        out.append(int(part))
    return tuple(out)


def check_python(found: tuple[int, ...]) -> Finding:
    """TVM's wheels cover 3.11 to 3.13 here."""
    text = ".".join(map(str, found[:3]))
    if (3, 11) <= found[:2] <= (3, 13):
        return Finding(what="Python", state=OK, seen=text)
    return Finding(
        what="Python", state=FAULT, seen=f"{text}; needs 3.11, 3.12 or 3.13", mend="python3.11 -m venv .venv"
    )


def check_tvm(get: Version) -> list[Finding]:
    """TVM and its FFI: the versions that work together."""
    tvm, ffi = get("apache-tvm"), get("apache-tvm-ffi")
    out = []
    if tvm is None:
        out.append(Finding(what="apache-tvm", state=FAULT, seen="not installed", mend=MEND_TVM))
    elif not tvm.startswith(TVM + "."):
        seen = f"{tvm}; needs {TVM}.*, whose TIR constructors are used"
        out.append(Finding(what="apache-tvm", state=FAULT, seen=seen, mend=MEND_TVM))
    else:
        out.append(Finding(what="apache-tvm", state=OK, seen=tvm))
    if ffi is None:
        out.append(Finding(what="apache-tvm-ffi", state=FAULT, seen="not installed", mend=MEND_FFI))
    elif numbers(ffi) >= FFI_BAD:
        seen = f"{ffi}: Schedule.tensorize segfaults, so any model with a matmul ends the process"
        out.append(Finding(what="apache-tvm-ffi", state=FAULT, seen=seen, mend=MEND_FFI))
    elif numbers(ffi) < FFI_GOOD:
        seen = f"{ffi}; needs 0.1.14.post0 or later"
        out.append(Finding(what="apache-tvm-ffi", state=FAULT, seen=seen, mend=MEND_FFI))
    else:
        out.append(Finding(what="apache-tvm-ffi", state=OK, seen=ffi))
    return out


def check_optional(get: Version) -> list[Finding]:
    """What only some commands need."""
    wanted = (
        ("torch", "peers and tirx_reduce.torch", 'pip install "tirx-reduce[torch]"'),
        ("matplotlib", "plots", 'pip install "tirx-reduce[bench]"'),
        ("tornado", "measuring through TVM's RPC", 'pip install "tirx-reduce[bench]"'),
    )
    out = []
    for name, purpose, mend in wanted:
        found = get(name)
        if found is None:
            out.append(Finding(what=name, state=NOTE, seen=f"not installed; needed for {purpose}", mend=mend))
        else:
            out.append(Finding(what=name, state=OK, seen=found))
    return out


def check_compilers(which: Callable[[str], str | None]) -> list[Finding]:
    """The CPU model is compiled by g++; clang checks address spaces."""
    mac = platform.system() == "Darwin"
    wanted = (
        ("g++", "the CPU model of the GPU", "brew install gcc" if mac else "apt-get install g++"),
        (
            "clang",
            "address-space checks of Metal text",
            "xcode-select --install" if mac else "apt-get install clang",
        ),
    )
    out = []
    for name, purpose, mend in wanted:
        path = which(name)
        if path is None:
            out.append(Finding(what=name, state=NOTE, seen=f"not found; needed for {purpose}", mend=mend))
        else:
            out.append(Finding(what=name, state=OK, seen=path))
    return out


def check_hooks() -> Finding:
    """Whether `import tvm` found our pipelines by itself."""
    from importlib.metadata import entry_points

    from tvm import relax
    from tvm.tirx import compilation_pipeline

    points = [p.name for p in entry_points(group="tvm.backends") if p.name == "tirx_reduce"]
    tir = "tirx_reduce" in compilation_pipeline.PIPELINE_MAP
    graph = "tirx_reduce" in relax.pipeline.PIPELINE_MAP
    if points and tir and graph:
        return Finding(
            what="pipelines", state=OK, seen="tir and relax `tirx_reduce` registered by `import tvm`"
        )
    if not points:
        seen = "no entry point of group tvm.backends; call tirx_reduce.register() by hand"
        return Finding(what="pipelines", state=NOTE, seen=seen, mend="pip install .")
    seen = "the entry point is there, the pipelines are not (TVM_DEVICE_BACKEND_AUTOLOAD=0 switches them off)"
    return Finding(what="pipelines", state=FAULT, seen=seen, mend="unset TVM_DEVICE_BACKEND_AUTOLOAD")


def check_devices() -> list[Finding]:
    """Each target kind: a device that runs, or what plans assume in its place."""
    from tirx_reduce.bench.explain import limit_line
    from tirx_reduce.bench.targets import device_of, read_target
    from tirx_reduce.device import limits_for

    out = []
    for kind in ("metal", "cuda"):
        target, device = read_target(kind), device_of(kind)
        limits = limit_line(limits_for(target, device))
        if device is None:
            assumed = "sm_90 is assumed; " if kind == "cuda" else "every Apple GPU is taken alike; "
            seen = f"no device; kernels run on the CPU model; {assumed}{limits}"
            out.append(Finding(what=kind, state=NOTE, seen=seen))
        else:
            out.append(
                Finding(
                    what=kind, state=OK, seen=f"{device.device_name}; read from target and device: {limits}"
                )
            )
    return out


def check_calibration(path: str | None) -> list[Finding]:
    """Whether a profile fits each device that is here, and this TVM."""
    import tvm

    from tirx_reduce.bench.targets import device_of, read_target
    from tirx_reduce.cost import calibration
    from tirx_reduce.device import device_name

    try:
        found = calibration.load(path)
    except ReduceError as error:
        state = NOTE if path is None and not calibration.packaged_path().exists() else FAULT
        return [Finding(what="calibration", state=state, seen=str(error), mend=calibration.MAKE_ONE)]
    profiles = found if isinstance(found, tuple) else (found,)
    out = []
    labels = [getattr(p, "label", "bare coefficients") for p in profiles]
    if not labels:
        seen = "no profile; the policies `service` and `guarded` need one, `analytic` and `ladder` do not"
        out.append(Finding(what="calibration", state=NOTE, seen=seen, mend=calibration.MAKE_ONE))
    for kind in ("metal", "cuda"):
        if device_of(kind) is None:
            continue
        name = device_name(None, read_target(kind))
        try:
            fit = calibration.select(
                found, target_kind=kind, device=name, dtype="float32", tvm_version=str(tvm.__version__)
            )
        except ReduceError as error:
            out.append(
                Finding(what=f"calibration, {kind}", state=NOTE, seen=str(error), mend=calibration.MAKE_ONE)
            )
        else:
            out.append(
                Finding(
                    what=f"calibration, {kind}", state=OK, seen=getattr(fit, "label", "bare coefficients")
                )
            )
    if labels and not any(f.what.startswith("calibration, ") for f in out):
        seen = f"profiles of {'; '.join(labels)}; none of these devices is here"
        out.append(Finding(what="calibration", state=NOTE, seen=seen))
    return out


def examine(calibration: str | None = None) -> list[Finding]:
    """Look at everything."""
    found = [check_python(sys.version_info[:3]), *check_tvm(installed)]
    basis_is_sound = all(f.state == OK for f in found)
    found += [*check_optional(installed), *check_compilers(shutil.which)]
    if basis_is_sound:
        found += [check_hooks(), *check_devices(), *check_calibration(calibration)]
    return found


def lines(findings: Iterable[Finding], style: Style) -> list[str]:
    """What a person reads."""
    signs = {OK: ("✓", "green"), NOTE: ("·", "yellow"), FAULT: ("✗", "red")}
    out = []
    for f in findings:
        sign, mark = signs[f.state]
        out.append(f"{style(sign, mark)} {style(f.what, 'bold')}: {f.seen}")
        if f.mend and f.state != OK:
            out.append(f"    {style('mend with:' if f.state == FAULT else 'get it with:', 'dim')} {f.mend}")
    return out


def main(args: argparse.Namespace) -> int:
    """Print the findings; status 1 where something must be mended."""
    if args.calibration is not None and not Path(args.calibration).is_file():
        raise ReduceError(f"calibration {args.calibration!r} is not there; needs a file")
    found = examine(args.calibration)
    if args.json:
        print(json.dumps({"findings": [asdict(f) for f in found]}))
    else:
        print("\n".join(lines(found, Style(wants_colour(sys.stdout, args.no_color)))))
    return 1 if any(f.state == FAULT for f in found) else 0
