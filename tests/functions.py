"""PrimFuncs for the tests, made as users get them: by Relax, by TOPI, by fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

Spec = tuple[tuple[Any, ...], str]


def relax_module(build: Callable[..., Any], specs: Sequence[Spec]) -> Any:
    """A Relax module of one function that returns `build(block_builder, *variables)`."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"a{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(specs)]
    with builder.function("main", variables):
        with builder.dataflow():
            out = builder.emit_output(build(builder, *variables))
        builder.emit_func_output(out)
    return builder.get()


def prim_funcs(module: Any) -> list[Any]:
    """The PrimFuncs of a module."""
    return [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]


def legalized(build: Callable[..., Any], *specs: Spec) -> Any:
    """The one PrimFunc that Relax legalises `build` to."""
    (func,) = prim_funcs(relax.transform.LegalizeOps()(relax_module(build, specs)))
    return func


def fused(build: Callable[..., Any], *specs: Spec) -> list[Any]:
    """The PrimFuncs after FuseOps and FuseTIR."""
    passes = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )
    return prim_funcs(passes(relax_module(build, specs)))


def fused_by_pattern(build: Callable[..., Any], pattern: Any, *specs: Spec) -> list[Any]:
    """The PrimFuncs where `pattern` is fused before legalisation."""
    passes = tvm.transform.Sequential(
        [
            relax.transform.FuseOpsByPattern([("tests.pattern", pattern)], annotate_codegen=False),
            relax.transform.LegalizeOps(),
            relax.transform.FuseTIR(),
        ]
    )
    return prim_funcs(passes(relax_module(build, specs)))


def topi_func(build: Callable[..., Any], *specs: Spec) -> Any:
    """The PrimFunc of a tensor expression."""
    inputs = [te.placeholder(s, d, name=f"a{i}") for i, (s, d) in enumerate(specs)]
    outs = build(*inputs)
    return te.create_prim_func([*inputs, *(outs if isinstance(outs, list | tuple) else [outs])])


def symbol(name: str, dtype: str = "int64") -> Any:
    """A symbolic extent."""
    return te.var(name, dtype)
