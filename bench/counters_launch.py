"""The process that a profiler watches: each contender of each line warmed, then called a few times between marks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from tirx_reduce.bench.build import Built, Case
from tirx_reduce.bench.grid_measure import PEER_SLACK, Contender, Rotation, the_build, the_peer
from tirx_reduce.bench.peers import DLIGHT, PEERS
from tirx_reduce.bench.stock import DLIGHT_DTYPES

MARK = "spin_kernel"
"""Part of the name of Torch's kernel behind `torch.cuda._sleep`: no contender launches it."""
WARM_CALLS = 3


def contenders(spec: Mapping[str, Any], line: Mapping[str, Any]) -> list[Contender]:
    """Peers and kernels of ours that were asked for at a line."""
    import tvm

    from tirx_reduce.bench.grid import load_build
    from tirx_reduce.bench.stand import local_stand
    from tirx_reduce.bench.stock import build_stock

    case = Case.from_json(line["case"])
    folder, stand_in = Path(spec["folder"]), bool(spec["stand_in"])
    stand = local_stand(tvm.target.Target(json.loads(spec["target"])), folder, stand_in=stand_in)
    load = partial(load_build, stand)
    ours_slack = 64.0 if stand_in else 1.0
    found = []
    for name in line["peers"]:
        if name == DLIGHT:
            stock = partial(build_stock, case, spec["target"], folder, stand_in=stand_in)
            if case.dtype in DLIGHT_DTYPES:
                found.append(the_build(DLIGHT, stock, load, max(PEER_SLACK, ours_slack)))
            continue
        found += [the_peer(peer, case) for peer in PEERS[name]]
    for name, built in line["ours"].items():
        found.append(the_build(name, partial(Built, **built), load, ours_slack))
    return found


def call_all(spec: Mapping[str, Any], out: IO[str]) -> None:
    """Launch everything; what happened goes to `out` as it happens, one JSON object a line."""
    device, calls = str(spec["device"]), int(spec["calls"])
    todo = [
        (number, line, contender)
        for number, line in enumerate(spec["lines"])
        for contender in contenders(spec, line)
    ]
    notes = [partial(_note, out, number, contender.name) for number, _, contender in todo]
    for note in notes:
        note()  # what a fault of the device keeps from being reached is named too
    for note, (_, line, contender) in zip(notes, todo, strict=True):
        try:
            _call(contender, Case.from_json(line["case"]), device, calls, note)
        except Exception as error:  # a library may raise anything; the other contenders go on
            note(reason=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")


def _note(out: IO[str], line: int, name: str, **more: Any) -> None:
    out.write(json.dumps({"line": line, "name": name, **more}) + "\n")
    out.flush()


def _call(contender: Contender, case: Case, device: str, calls: int, note: Callable[..., None]) -> None:
    import torch

    from tirx_reduce.bench.grid_operands import check, draw_inputs, empty_outputs, references

    operands = Rotation(
        inputs=(draw_inputs(case, device, seed=0),), outputs=(empty_outputs(case, device),), launches=1
    )
    with torch.no_grad(), _stream(device):
        launch = contender.open(operands)
        for _ in range(WARM_CALLS):
            results = launch(0)
        wanted = references(case, operands.inputs[0].tensors)
        verified = check(case, results, wanted, contender.slack)
        note(verified=verified)
        if not verified["ok"]:
            note(reason=f"wrong result: {verified['share']} of what is allowed")
            return
        for _ in range(calls):
            # The mark is profiled too: it is what a call begins with in the profiler's list.
            with _profiled(device):
                if device == "cuda":
                    torch.cuda._sleep(1)
                launch(0)
            note(profiled=True)


@contextmanager
def _stream(device: str) -> Any:
    """TVM's launches on Torch's stream."""
    if device != "cuda":
        yield
        return
    import torch
    import tvm_ffi

    use: Any = tvm_ffi.use_torch_stream
    with use(torch.cuda.stream(torch.cuda.current_stream())):
        yield


@contextmanager
def _profiled(device: str) -> Any:
    if device != "cuda":
        yield
        return
    import torch

    runtime: Any = torch.cuda.cudart()
    torch.cuda.synchronize()
    runtime.cudaProfilerStart()
    try:
        yield
        torch.cuda.synchronize()
    finally:
        runtime.cudaProfilerStop()


def main(argv: Sequence[str]) -> int:
    """Launch what a file asks for."""
    spec = json.loads(Path(argv[0]).read_text())
    with Path(spec["marks"]).open("w") as out:
        call_all(spec, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
