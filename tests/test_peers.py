"""Peers on the CPU: torch itself, and stand-ins that have the signatures of Liger's and quack's functions."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tirx_reduce.bench import peers
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.grid_lines import lines
from tirx_reduce.bench.grid_measure import PEER_SLACK
from tirx_reduce.bench.grid_operands import check, draw_inputs, references
from tirx_reduce.errors import ReduceError

SMALL = {
    "softmax": (4, 48),
    "rms_norm": (4, 48),
    "layer_norm": (4, 48),
    "add_rms_norm": (4, 48),
    "masked_softmax": (2, 2, 4, 48),
}


def right(ready: peers.Ready, case: Case) -> bool:
    tensors = draw_inputs(case, "cpu", seed=1).tensors
    with torch.no_grad():
        results = ready.call(ready.adapt(tensors))
    return bool(check(case, results, references(case, tensors), PEER_SLACK)["ok"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operator", SMALL)
def test_eager_is_the_operator(operator: str, dtype: str) -> None:
    case = Case(operator=operator, shape=SMALL[operator], dtype=dtype)
    assert right(peers.make_eager(case), case)


def test_eager_knows_every_operator_of_the_grid() -> None:
    for case in {c.operator: c for c in lines()}.values():
        peers.make_eager(case)


def test_an_operator_that_torch_lacks_is_refused() -> None:
    with pytest.raises(ReduceError, match="torch has no logsumexp"):
        peers.make_eager(Case(operator="logsumexp", shape=(4, 48)))


def _norm(x: Any, eps: float, *, centre: bool) -> Any:
    wide = x.float()
    wide = wide - wide.mean(-1, keepdim=True) if centre else wide
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with the signatures of liger-kernel 0.8.5 and quack-kernels 0.6.5."""

    class Softmax:
        @staticmethod
        def apply(input_: Any) -> Any:
            return torch.softmax(input_, -1)

    class RMSNorm:
        @staticmethod
        def apply(
            X: Any,
            W: Any,
            eps: float,
            offset: float = 0.0,
            casting_mode: str = "llama",
            in_place: bool = True,
            row_mode: Any = None,
        ) -> Any:
            return (_norm(X, eps, centre=False).to(X.dtype) * W).to(X.dtype)

    class LayerNorm:
        @staticmethod
        def apply(X: Any, W: Any, B: Any, eps: float) -> Any:
            return (_norm(X, eps, centre=True) * W + B).to(X.dtype)

    class FusedAddRMSNorm:
        @staticmethod
        def apply(
            X: Any,
            R: Any,
            W: Any,
            eps: float,
            offset: float = 0.0,
            casting_mode: str = "llama",
            in_place: bool = False,
        ) -> Any:
            total = X + R
            return RMSNorm.apply(total, W, eps), total

    def softmax_fwd(x: Any) -> Any:
        return torch.softmax(x, -1)

    def rmsnorm_fwd(
        x: Any,
        weight: Any = None,
        bias: Any = None,
        residual: Any = None,
        out_dtype: Any = None,
        residual_dtype: Any = None,
        eps: float = 1e-6,
        store_rstd: bool = False,
        weight_offset: float = 0.0,
    ) -> Any:
        total = x if residual is None else x + residual
        return (_norm(total, eps, centre=False) * weight).to(x.dtype), total, None

    def layernorm_fwd(
        x: Any,
        weight: Any,
        bias: Any = None,
        eps: float = 1e-6,
        return_rstd: bool = False,
        return_mean: bool = False,
    ) -> Any:
        assert weight.dtype == torch.float32, "Weight must be float32"
        assert bias.dtype == torch.float32, "Bias must be float32"
        return (_norm(x, eps, centre=True) * weight + bias).to(x.dtype)

    def _rmsnorm_fwd(
        x: Any,
        weight: Any,
        out: Any,
        bias: Any = None,
        rstd: Any = None,
        mean: Any = None,
        residual: Any = None,
        residual_out: Any = None,
        eps: float = 1e-6,
        is_layernorm: bool = False,
        weight_offset: float = 0.0,
    ) -> None:
        assert is_layernorm
        assert rstd is mean is residual is residual_out is None
        out.copy_(_norm(x, eps, centre=True) * weight + bias)

    made: dict[str, dict[str, Any]] = {
        "liger_kernel": {},
        "liger_kernel.ops": {
            "LigerSoftmaxFunction": Softmax,
            "LigerRMSNormFunction": RMSNorm,
            "LigerLayerNormFunction": LayerNorm,
            "LigerFusedAddRMSNormFunction": FusedAddRMSNorm,
        },
        "quack": {},
        "quack.softmax": {"softmax_fwd": softmax_fwd},
        "quack.rmsnorm": {
            "rmsnorm_fwd": rmsnorm_fwd,
            "layernorm_fwd": layernorm_fwd,
            "_rmsnorm_fwd": _rmsnorm_fwd,
        },
    }
    for name, members in made.items():
        module = ModuleType(name)
        for key, value in members.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operator", ["softmax", "rms_norm", "layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("make", [peers.make_liger, peers.make_quack])
def test_liger_and_quack_are_called_as_they_are_written(
    libraries: None, make: Any, operator: str, dtype: str
) -> None:
    case = Case(operator=operator, shape=SMALL[operator], dtype=dtype)
    assert right(make(case), case)


def test_quack_layer_norm_has_a_second_form_for_16_bit_weights(libraries: None) -> None:
    case = Case(operator="layer_norm", shape=(4, 48), dtype="bfloat16")
    assert right(peers.make_quack_same(case), case)
    for other in (Case(operator="layer_norm", shape=(4, 48)), Case(operator="softmax", shape=(4, 48))):
        with pytest.raises(ReduceError, match="only a 16-bit layer_norm differs"):
            peers.make_quack_same(other)


@pytest.mark.parametrize("make", [peers.make_liger, peers.make_quack])
def test_masked_softmax_is_refused_by_libraries_without_it(libraries: None, make: Any) -> None:
    with pytest.raises(ReduceError, match="has no masked_softmax"):
        make(Case(operator="masked_softmax", shape=(2, 2, 4, 48)))


def test_an_absent_library_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel.ops", None)
    with pytest.raises(ImportError):
        peers.make_liger(Case(operator="softmax", shape=(4, 48)))


def test_compile_starts_afresh_for_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without it, the ninth static shape of one function is run eagerly, in silence.
    calls: list[str] = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: calls.append("reset"))

    def compiled(function: Any, *, dynamic: bool) -> Any:
        assert not dynamic
        calls.append("compile")
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    case = Case(operator="softmax", shape=(4, 48))
    assert right(peers.make_compile(case), case)
    assert calls == ["reset", "compile"]


def test_peers_are_read_by_name() -> None:
    assert peers.read_peers("compile, copy,ours") == ("compile", "copy", "ours")
    with pytest.raises(ReduceError, match=r"peers triton; known: copy, eager, compile, liger, quack"):
        peers.read_peers("copy,triton")
    with pytest.raises(ReduceError, match="name one twice"):
        peers.read_peers("copy,copy")
    with pytest.raises(ReduceError, match="peers are none"):
        peers.read_peers(",")


def test_versions_name_what_is_absent() -> None:
    found = peers.versions(("eager", "liger"))
    assert found["torch"] == str(torch.__version__).split("+")[0] or found["torch"] == str(torch.__version__)
    assert set(found) == {"torch", "liger-kernel"}
