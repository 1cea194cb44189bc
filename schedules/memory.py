"""Dtypes as they stand in memory, where a backend has no type of its own for them.

Metal under TVM has no vectors of bool, and no bfloat16: there a bf16 value is held as the float32 of the same value,
and stands in memory as 16 bits.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from tirx_reduce.program import item_bytes

from .cluster import helper
from .tir import Block, cast, imm, load

_WORD = 4

# Two bf16 values are one word: the high half of a float32 each, taken by a shift or a mask.
_WIDEN = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ float tirx_reduce_widen(const nv_bfloat16* array, int at) {
  unsigned word = reinterpret_cast<const unsigned*>(array)[at >> 1];
  return __uint_as_float(at & 1 ? word & 0xffff0000u : word << 16);
}
#endif
"""

# Where rows start anywhere, the compiler may keep every 16-bit element of a packet in a register of its own, and store
# them in pieces: four stores for one, and launches up to a third longer. Four words it stores together.
_WHOLE = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_whole_4(void* packet) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm("" : "+r"(((unsigned*)packet)[i]));
}
#endif
"""


def memory_dtype(dtype: str, kind: str) -> str:
    """The dtype of an access."""
    if dtype == "bool":
        return "int8"
    return "uint16" if dtype == "bfloat16" and kind == "metal" else dtype


def from_memory(value: Any, dtype: str, kind: str) -> Any:
    """An element that was loaded, as a value to compute with."""
    if dtype == "bool":
        return tirx.NE(value, imm(0, "int8"))
    if dtype == "bfloat16" and kind == "metal":
        return tirx.reinterpret("float32", cast(value, "uint32") << imm(16, "uint32"))
    return value


def by_words(array: Any, kind: str) -> bool:
    """Whether elements of a lane's array are widened by words (CUDA, which else takes two instructions a half)."""
    return kind == "cuda" and str(array.ty.dtype) == "bfloat16" and int(array.ty.shape[0]) % 2 == 0


def widened(block: Block, array: Any, at: Any) -> Any:
    """Element `at` of such an array as a float32."""
    first = tirx.address_of(load(array, 0))
    return block.bind(
        "e", cuda_func_call("tirx_reduce_widen", first, at, source_code=_WIDEN, return_type="float32")
    )


def keep_whole(block: Block, packets: Any, kind: str) -> None:
    """See that a lane's packets of 16 bytes are words here (CUDA), where their elements are less than a word.

    Before a store, which the compiler may do in pieces; in a loop, before which it may unpack what the loop reads.
    """
    size, count = item_bytes(str(packets.ty.dtype)), int(packets.ty.shape[0])
    if kind != "cuda" or size >= _WORD:
        return
    packet = 4 * _WORD // size
    for at in range(0, count // packet * packet, packet):
        helper(block, "tirx_reduce_whole_4", tirx.address_of(load(packets, at)), source=_WHOLE)


def to_memory(value: Any, dtype: str, kind: str) -> Any:
    """A value rounded to `dtype`, as the element to store."""
    if dtype == "bfloat16" and kind == "metal":
        return cast(_rounded_bits(cast(value, "float32")) >> imm(16, "uint32"), "uint16")
    return cast(cast(value, dtype), memory_dtype(dtype, kind))


def round_bfloat16(value: Any) -> Any:
    """A float32 rounded to the nearest bf16, ties to even, still as a float32."""
    return tirx.reinterpret("float32", _rounded_bits(value) & imm(0xFFFF0000, "uint32"))


def _rounded_bits(value: Any) -> Any:
    bits = tirx.reinterpret("uint32", value)
    odd = (bits >> imm(16, "uint32")) & imm(1, "uint32")
    # A NaN with a full payload would overflow into a zero; one is as good as another.
    nan = tirx.GT(bits & imm(0x7FFFFFFF, "uint32"), imm(0x7F800000, "uint32"))
    return tirx.Select(nan, imm(0x7FC00000, "uint32"), bits + imm(0x7FFF, "uint32") + odd)
