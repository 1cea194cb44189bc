"""The linter finds what a C++ compiler takes and a GPU's does not; the originals are clean."""

from __future__ import annotations

import pytest

from tests.emulator_texts import render
from tirx_reduce import emulator

needs_clang = pytest.mark.skipif("clang" not in emulator.checkers("metal"), reason="clang is not installed")
needs_nvcc = pytest.mark.skipif("nvcc" not in emulator.checkers("cuda"), reason="nvcc is not installed")

_STORE = "z_ptr[row] = mean;"
# What is put in place of a store, what the finding says, and who must say it.
DEFECTS = (
    ("double d = 1.0; z_ptr[row] = d;", "double", "rule"),
    ("z_ptr[row] = erf(mean);", "erf", "rule"),
    ("z_ptr[row] = nearbyint(mean);", "nearbyint", "rule"),
    ("z_ptr[row] = mean * 1.0d;", "1.0d", "rule"),
    ("SHARED float late[2]; late[0] = mean; z_ptr[row] = late[0];", "branch or loop", "rule"),
    ("long wide = 1; wide = XOR(wide, 1); z_ptr[row] = (float)wide;", "64-bit", "rule"),
    ("SHAREDPTR s = (SHAREDPTR)x_ptr; z_ptr[row] = s[0];", "address space", "clang"),
    ("thread float* q = slots; z_ptr[row] = q[0];", "address space|cannot initialize", "clang"),
    ("device float* q = (device float*)xl; z_ptr[row] = q[0];", "address space", "clang"),
    ("z_ptr[row] = frobnicate(mean);", "frobnicate", "clang"),
    ("z_ptr[row] = as_type<float>((half)mean);", "different size", "clang"),
    ("float4 v = mean < 0.0f; z_ptr[row] = v.x * undefined_name;", "undefined_name", "clang"),
)


def test_original_metal_is_clean() -> None:
    assert emulator.lint(render("metal"), "metal") == ()


@needs_nvcc
def test_original_cuda_is_clean() -> None:
    assert emulator.lint(render("cuda"), "cuda") == ()


@needs_clang
@pytest.mark.parametrize(("new", "says", "by"), DEFECTS, ids=[d[0].split(";")[0] for d in DEFECTS])
def test_metal_defect(new: str, says: str, by: str) -> None:
    text = render("metal", ((_STORE, new),))
    findings = [f for f in emulator.lint(text, "metal") if f.by == by]
    line = 1 + render("metal").split(_STORE)[0].count("\n")
    assert any(f.line == line and any(w in f.text for w in says.split("|")) for f in findings), findings


@needs_nvcc
def test_cuda_defect_names_its_line() -> None:
    text = render("cuda", ((_STORE, "z_ptr[row] = frobnicate(mean);"),))
    (finding, *_) = emulator.lint(text, "cuda")
    assert "frobnicate" in text.split("\n")[finding.line - 1]
    assert finding.by == "nvcc"


def test_unbalanced_text_is_a_finding() -> None:
    for kind in ("metal", "cuda"):
        findings = emulator.lint(render(kind).rstrip()[:-1], kind)
        assert any("never closed" in f.text for f in findings)


def test_unknown_kind() -> None:
    with pytest.raises(emulator.UnsupportedSource, match="'metal' or 'cuda'"):
        emulator.lint("", "vulkan")
