"""What every test has: a GPU mark that fails where there is no GPU, and golden files that can be renewed."""

from __future__ import annotations

import hypothesis
import pytest

# The same examples in every run, and no verdict on speed: machines of CI share their cores.
hypothesis.settings.register_profile("tirx-reduce", derandomize=True, deadline=None)
hypothesis.settings.load_profile("tirx-reduce")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    import tvm

    if not (tvm.cuda(0).exist or _metal()):
        pytest.fail("marked gpu and selected, but there is no GPU", pytrace=False)


def _metal() -> bool:
    import tvm

    try:
        return bool(tvm.metal(0).exist)
    except Exception:
        # Wheels for Linux lack the Metal runtime, and asking it raises.
        return False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
