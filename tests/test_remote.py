"""Measuring through TVM's tracker and server on loopback, the CPU standing in for the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm

from tirx_reduce.bench.cohorts import cases, grid
from tirx_reduce.bench.measure import Options
from tirx_reduce.bench.records import of_kind, read
from tirx_reduce.bench.remote import far_target, round_trip_us, rpc_stand
from tirx_reduce.bench.search import search
from tirx_reduce.errors import ReduceError

TARGET = {"kind": "cuda", "arch": "sm_90"}


@pytest.fixture(scope="module")
def tracker() -> Iterator[str]:
    from tvm.rpc.server import Server
    from tvm.rpc.tracker import Tracker

    found = Tracker("127.0.0.1", 9500, 9999)
    server = Server("127.0.0.1", 9500, 9999, key="stand-in", tracker_addr=("127.0.0.1", found.port))
    yield f"127.0.0.1:{found.port}"
    server.terminate()
    found.terminate()


def test_a_search_over_rpc(tracker: str, tmp_path: Path) -> None:
    stand = rpc_stand(tracker, "stand-in", "Far CPU", TARGET, tmp_path, stand_in=True, commit="c" * 40)
    out = search(
        stand,
        tmp_path / "search.jsonl",
        cohort=cases(operators=("softmax",), shapes=((5, 769),)),
        candidates=grid(widths=(64,), families=("reload",)),
        options=Options(samples=3, batch_ms=0.5, warmup_ms=1.0),
        winners=False,
    )
    records = read(out)
    assert records[0].data["device"] == "Far CPU"
    assert records[0].data["rpc"] is True
    trial = of_kind(records, "trial")[0]
    assert trial["status"] == "measured"
    assert trial["verified"]["ok"]
    # Host times would be the network's.
    assert set(trial["timing"]["phases"]) == {"gpu_batch", "gpu_single"}
    assert round_trip_us(stand) > 0


def test_host_code_for_metal_is_that_of_a_mac() -> None:
    assert "arm64-apple-macos" in str(far_target("metal").host)
    named = tvm.target.Target("metal", tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-apple-macos"}))
    assert "x86_64-apple-macos" in str(far_target(named).host)
    assert far_target(TARGET).host is None


def test_what_cannot_be_reached_gets_one_line(tracker: str, tmp_path: Path) -> None:
    with pytest.raises(ReduceError, match="tracker 'here'; needs HOST:PORT"):
        rpc_stand("here", "k", "d", TARGET, tmp_path)
    with pytest.raises(ReduceError, match=r"no tracker answers at 127\.0\.0\.1:9"):
        rpc_stand("127.0.0.1:9", "k", "d", TARGET, tmp_path, wait_s=1)
    with pytest.raises(ReduceError, match="has no cuda device"):
        rpc_stand(tracker, "stand-in", "d", TARGET, tmp_path)
