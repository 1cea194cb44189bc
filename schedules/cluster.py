"""Hopper's launches (CUDA, sm_90 and later): dependent launches, and thread-block clusters.

The groups of a cluster exchange by mail: a lane sends a value into the shared memory of another group, and there a
barrier object in shared memory, a mailbox, counts the bytes that have come. A cluster barrier in its place would
make every lane wait until all its accesses have reached the device's memory. On the CPU model the helpers are those
of its header: the macro TIRX_REDUCE_CPU_MODEL is set there and the text below is skipped.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from tirx_reduce.program import item_bytes

from .tir import Block, imm, load

_ARRIVE = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
#endif
"""
_WAIT = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif
"""
_OPEN = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_mailbox_open(uint64_t* box, int bytes) {
  unsigned at = (unsigned)__cvta_generic_to_shared(box);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
#endif
"""
_SEND = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_mailbox_send_{name}({type}* slot, {type} value, uint64_t* box, int rank) {{
  unsigned there = (unsigned)__cvta_generic_to_shared(slot), mail = (unsigned)__cvta_generic_to_shared(box);
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(there) : "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(mail) : "r"(rank));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.{suffix} [%0], %1, [%2];"
    :: "r"(there), "{letter}"(value), "r"(mail) : "memory");
}}
#endif
"""
_RECEIVE = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_mailbox_wait(uint64_t* box) {
  unsigned at = (unsigned)__cvta_generic_to_shared(box), done;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
      : "=r"(done) : "r"(at) : "memory");
  } while (!done);
}
#endif
"""
_READS = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_reads(const void* tensor) {
  asm volatile("" :: "l"(tensor) : "memory");
}
#endif
"""
_KEEP = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_keep(const void* slots) {}
#endif
"""
_PREFETCH = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_prefetch(const void* from, int bytes) {
  unsigned long long first = (unsigned long long)from, begin = (first + 15) & ~15ull, end = (first + bytes) & ~15ull;
  if (begin < end)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(begin), "r"((int)(end - begin)) : "memory");
}
#endif
"""
_OFFER = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_offer() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif
"""
_FOLLOW = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_follow() {}
#endif
"""
_BEGIN = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_begin() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif
"""
_TYPES = {
    "float32": ("float", "f32", "f"),
    "int32": ("int", "b32", "r"),
    "uint32": ("unsigned int", "b32", "r"),
    "int64": ("int64_t", "b64", "l"),
    "uint64": ("uint64_t", "b64", "l"),
}


def helper(block: Block, name: str, *args: Any, source: str) -> None:
    """Call a device function of ours, whose text is `source`."""
    block.add(tirx.Evaluate(cuda_func_call(name, *args, source_code=source)))


def offer(block: Block) -> None:
    """Let the next launch take its place on the device, once every group has come here.

    A launch that offers only after `begin` tells the next one that all before itself has ended.
    """
    helper(block, "tirx_reduce_offer", source=_OFFER)


def begin(block: Block) -> None:
    """Wait until the launch before has ended, and all it wrote is there.

    Without programmatic dependent launch it does nothing; with it, the latency of a launch hides behind the one before.
    """
    helper(block, "tirx_reduce_begin", source=_BEGIN)


def follow(block: Block) -> None:
    """Say that the launch before is of the same function, and began when all before it had ended.

    From here on what that launch does not write may be read. For the CPU model, which holds a kernel to it.
    """
    helper(block, "tirx_reduce_follow", source=_FOLLOW)


def reads(block: Block, tensor: Any) -> None:
    """Say that `tensor` may be written until `begin`.

    CUDA's compiler takes a tensor that a kernel only reads for constant from the kernel's first instruction on, and
    moves loads of it before the wait, where the launch before may still write it.
    """
    helper(block, "tirx_reduce_reads", tensor, source=_READS)


def prefetch(block: Block, start: Any, size: Any) -> None:
    """Bring the whole 16 bytes among `size` bytes from `start` on into the second cache."""
    helper(block, "tirx_reduce_prefetch", start, size, source=_PREFETCH)


def arrive(block: Block) -> None:
    """Say that this lane's group is here, its mailboxes open. Orders nothing else."""
    helper(block, "tirx_reduce_cluster_arrive", source=_ARRIVE)


def wait(block: Block) -> None:
    """Wait until every group of the cluster has arrived."""
    helper(block, "tirx_reduce_cluster_wait", source=_WAIT)


def mailboxes(opening: Block, lane: Any, dtypes: list[str], count: int, turns: int = 1) -> Any:
    """`turns` mailboxes for `count` values of each of `dtypes`, opened by a lane each before the arrival."""
    boxes = opening.alloc("mailbox", turns, "uint64", "shared")
    size = count * sum(item_bytes(d) for d in dtypes)
    with opening.when(tirx.EQ(lane, imm(0)) if turns == 1 else tirx.LT(lane, imm(turns))) as some:
        box = tirx.address_of(load(boxes, 0 if turns == 1 else lane))
        helper(some, "tirx_reduce_mailbox_open", box, imm(size), source=_OPEN)
    return boxes


def keep(opening: Block, slots: Any) -> None:
    """Use `slots` before anything else is: another group may write them before this one comes to its exchange.

    TVM's own lowering gives arrays whose uses do not overlap one place, and sees of that only what this group does.
    """
    helper(opening, "tirx_reduce_keep", tirx.address_of(load(slots, 0)), source=_KEEP)


def send(block: Block, box: Any, slots: Any, index: Any, value: Any, rank: Any) -> None:
    """Write `value` to `slots[index]` in the shared memory of group `rank`, and count it in its mailbox at `box`."""
    dtype = str(value.ty.dtype)
    kind, suffix, letter = _TYPES[dtype]
    source = _SEND.format(name=dtype, type=kind, suffix=suffix, letter=letter)
    slot = tirx.address_of(load(slots, index))
    helper(block, f"tirx_reduce_mailbox_send_{dtype}", slot, value, box, rank, source=source)


def receive(block: Block, box: Any) -> None:
    """Wait until all that the mailbox at `box` expects has come."""
    helper(block, "tirx_reduce_mailbox_wait", box, source=_RECEIVE)
