"""Candidates: what is enumerated, what is refused, and in which words. No policy is asked."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost_cases import LIMITS, facts
from tirx_reduce.candidates import (
    default_scope,
    enumerate_candidates,
    full_scope,
    private_rounds,
    private_scalars,
    refusal,
    widest_vector,
    widths,
)
from tirx_reduce.program import item_bytes
from tirx_reduce.values import Candidate, DeviceLimits, RowFacts

CUDA = DeviceLimits(kind="cuda", shared_bytes=49152, opt_in_shared_bytes=232448, max_arguments=512)


def test_default_scope_is_32_widths_with_two_reuses() -> None:
    found = enumerate_candidates(facts(), LIMITS)
    assert len(found) == 64
    assert {c.width for c, _ in found} == set(range(32, 1025, 32))
    assert {(c.packing, c.unroll, c.splits, c.vector) for c, _ in found} == {(1, 1, 1, 4)}
    assert {c.reuse for c, _ in found} == {"reload", "private"}


def test_private_budget_decides_which_widths_may_keep_the_row() -> None:
    found = dict(enumerate_candidates(facts(columns=12289), LIMITS))
    assert found[Candidate(width=64, vector=4, reuse="private")] == "private: 196 scalars a lane; limit 64"
    assert found[Candidate(width=192, vector=4, reuse="private")] == "private: 68 scalars a lane; limit 64"
    assert found[Candidate(width=224, vector=4, reuse="private")] is None
    assert all(reason is None for c, reason in found.items() if c.reuse == "reload")


def test_widths_below_a_subgroup_are_powers_of_two() -> None:
    assert widths(LIMITS)[:7] == (1, 2, 4, 8, 16, 32, 64)
    assert len(widths(LIMITS)) == 5 + 32


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Candidate(width=1056), "group: 1056 threads; limit 1024"),
        (Candidate(width=512, packing=4), "group: 2048 threads; limit 1024"),
        (Candidate(width=48), "width: 48 lanes; needs a multiple of the subgroup's 32"),
        (Candidate(width=12, packing=8), "width: 12 lanes; needs a power of two below the subgroup's 32"),
        (Candidate(width=64, packing=3), "packing: 3 programs; needs a power of two"),
        (Candidate(width=8, packing=2), "group: 16 threads; needs whole subgroups of 32"),
        (Candidate(width=64, unroll=2), "unroll: 2 packets; only 1 is emitted"),
        (Candidate(width=64, vector=3), "vector: 3 elements; needs one of 1, 2, 4, 8"),
        (Candidate(width=64, vector=8), "vector: 8 elements; limit 4 on metal"),
        (Candidate(width=64, packing=2, splits=2), "splits: 2 with packing 2; needs one of them 1"),
        (
            Candidate(width=64, splits=2, reuse="private"),
            "splits: private values do not outlive their group; needs reload",
        ),
        (
            Candidate(width=512, vector=4, splits=2),
            "splits: 2 groups take 4096 columns a step; the row has 1537",
        ),
        (Candidate(width=64, rows=1000), "rows: 1000 a program, written out one after another; limit 16"),
        (Candidate(width=64, rows=17), "rows: 17 a program, written out one after another; limit 16"),
    ],
)
def test_refusals_in_words(candidate: Candidate, reason: str) -> None:
    assert refusal(candidate, facts(), LIMITS) == reason


def test_sixteen_rows_a_program_are_legal() -> None:
    assert refusal(Candidate(width=64, rows=16), facts(), LIMITS) is None


def test_vectors_are_16_bytes_at_most() -> None:
    assert refusal(Candidate(width=64, vector=8), facts(), CUDA) == "vector: 32 bytes an access; limit 16"
    assert refusal(Candidate(width=64, vector=8), facts(dtype="float16"), CUDA) is None
    assert widest_vector(facts(dtype="float16"), CUDA) == 4
    assert widest_vector(facts(dtype="float16"), CUDA, up_to=8) == 8


def test_a_vector_needs_alignment_or_dense_rows() -> None:
    loose = facts(dense=False, align=2)
    assert refusal(Candidate(width=64, vector=2), loose, LIMITS) is None
    assert refusal(Candidate(width=64, vector=4), loose, LIMITS) == (
        "vector: rows of y start at multiples of 2; needs multiples of 4, or dense rows"
    )
    assert widest_vector(loose, LIMITS) == 2
    assert widest_vector(facts(dense=False, align=16), LIMITS) == 4


def test_a_row_shorter_than_a_vector_gets_a_shorter_one() -> None:
    assert widest_vector(facts(columns=3), LIMITS) == 2
    assert widest_vector(facts(columns=1), LIMITS) == 1


def test_nothing_is_kept_where_nothing_is_read_again() -> None:
    reason = refusal(Candidate(width=64, reuse="private"), facts(kept=0), LIMITS)
    assert reason == "private: no pass reads again what an earlier one read"


@pytest.mark.parametrize("reuse", ["private", "shared", "mixed"])
def test_symbolic_columns_are_not_kept(reuse: str) -> None:
    reason = refusal(Candidate(width=64, reuse=reuse), facts(columns=None), LIMITS, columns=4096)
    assert reason == f"{reuse}: the number of columns is symbolic; needs a fixed one"


def test_shared_rows_fill_threadgroup_memory() -> None:
    c = Candidate(width=64, vector=4, reuse="shared")
    assert refusal(c, facts(columns=8192), LIMITS) == (
        "shared: 32776 bytes of threadgroup memory; limit 32768"
    )
    assert refusal(c, facts(columns=8192), CUDA) is None
    assert refusal(c, facts(columns=65536), CUDA) == (
        "shared: 262152 bytes of threadgroup memory; limit 232448"
    )


def test_arguments_have_a_limit() -> None:
    assert (
        refusal(Candidate(width=64), facts(arguments=32), LIMITS) == "arguments: 32 of the kernel; limit 31"
    )
    assert refusal(Candidate(width=64), facts(arguments=32), CUDA) is None


def test_full_scope_is_lazy_and_covers_the_default_one() -> None:
    start = time.perf_counter()
    first = list(itertools.islice(full_scope(facts(), LIMITS), 10))
    assert len(first) == 10
    assert time.perf_counter() - start < 1.0
    everything = set(full_scope(facts(), LIMITS))
    assert set(default_scope(facts(), LIMITS)) <= everything
    assert any(c.splits > 1 for c in everything)
    assert any(c.packing > 1 and c.width < 32 for c in everything)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 4), ("float16", 2), ("bfloat16", 2), ("int64", 8), ("int8", 1), ("bool", 1),
     ("float8_e4m3fn", 1)],
)  # fmt: skip
def test_item_bytes(dtype: str, size: int) -> None:
    assert item_bytes(dtype) == size


@given(
    columns=st.integers(1, 70000),
    dtype=st.sampled_from(["float32", "float16"]),
    limits=st.builds(
        DeviceLimits,
        max_threads=st.sampled_from([64, 256, 1024]),
        private_scalars=st.integers(1, 128),
        kind=st.sampled_from(["metal", "cuda"]),
    ),
    dense=st.booleans(),
    align=st.sampled_from([1, 2, 4, 8, 16]),
    seed=st.integers(0, 997),
)
def test_what_is_legal_keeps_every_hard_limit(
    columns: int, dtype: str, limits: DeviceLimits, dense: bool, align: int, seed: int
) -> None:
    known: RowFacts = facts(columns=columns, dtype=dtype, dense=dense, align=align)
    size = item_bytes(dtype)
    legal = [
        c
        for c in itertools.islice(full_scope(known, limits), seed, None, 97)
        if refusal(c, known, limits) is None
    ]
    for c in legal:
        assert c.width * c.packing <= limits.max_threads
        assert (c.width * c.packing) % limits.subgroup_size == 0
        assert c.vector * size <= 16
        assert c.vector <= 4 or limits.kind == "cuda"
        assert dense or align % c.vector == 0
        if c.reuse == "private":
            assert private_scalars(c, known.kept, columns) <= limits.private_scalars
        if c.reuse == "mixed":
            near = private_rounds(c, known.kept, columns) * c.vector
            assert known.kept * near <= limits.private_scalars
            # What is left at the ends of a row is in registers, too.
            far = (columns - 2 * c.vector) // c.splits - near * c.width
            assert far * size * c.packing <= max(limits.shared_bytes, limits.opt_in_shared_bytes)
        if c.reuse == "shared":
            assert columns * size * c.packing // c.splits <= max(
                limits.shared_bytes, limits.opt_in_shared_bytes
            )


def test_what_a_lane_keeps_has_room_in_the_registers_of_all_threads() -> None:
    """With more, CUDA's compiler spills; of Metal nothing is known."""
    long = facts(columns=50257)
    wide = Candidate(width=800, vector=4, reuse="private")
    told = "private: 64 scalars a lane of 800; registers hold 56"
    assert refusal(wide, long, CUDA) == told
    assert refusal(wide, long, LIMITS) is None
    assert refusal(Candidate(width=512, vector=4, reuse="private"), facts(columns=32768), CUDA) is None


@pytest.mark.parametrize("splits", [2, 4])
def test_groups_are_counted_in_32_bits(splits: int) -> None:
    many = facts(rows=2**30 + 7, columns=64)
    candidate = Candidate(width=32, splits=splits)
    groups = (2**30 + 7) * splits
    assert refusal(candidate, many, LIMITS) == f"groups: {groups}; needs fewer than 2^31"


def test_the_rows_of_the_last_group_are_counted_too() -> None:
    most = facts(rows=2**31 - 1, columns=1)
    told = "rows: 2147483647 in groups of 7; needs no more than 2^31 when the last one is full"
    assert refusal(Candidate(width=32, vector=1, rows=7), most, LIMITS) == told
    assert refusal(Candidate(width=32, vector=1, rows=8), most, LIMITS) is None
