"""The rules of `ladder`: which mapping for how many rows of how many columns.

Where groups form clusters the numbers are those of sweeps over some 10000 kernels on H200s (`docs/kernels.md`).
What they say: a lane holds 8 elements where a launch is short and 16 to 32 where rows stream; from 2000 to 8000
columns on a row takes several groups, small ones, so that one's exchange hides behind another's loads; the longest
rows of 16 bits whose weights weigh as much as they do stay in shared memory, where they take half of the room that
their float32 would take in registers; and a handful of the longest rows takes two launches, which use the whole
device. Elsewhere, Metal too, a row has one group as long as it fits; those numbers are an earlier sweep's on the same
device without clusters, and on Metal by analogy.
"""

from __future__ import annotations

import math

from tirx_reduce.values import Candidate, DeviceLimits

from . import unaligned
from .rung import ASSUMED_CORES, Rung, Shape, alike, parts

SHORT = 512
"""Columns up to which a row takes a subgroup or a part of one."""
MOST_GROUPS = 16
HANDFUL = 1 << 20
"""Elements that two launches read, the second time from the second cache, sooner than one cluster a row does once."""
LONGEST = 196607
"""Columns of 16 bits, of which the same is said from here on."""
WIDEST = 1024
SMALL_GROUP = 256
"""Lanes of a group where a core holds several of them."""


def vectors(shape: Shape, limits: DeviceLimits) -> list[int]:
    """Elements of an access, the preferred one first."""
    widest = 16 // shape.storage_bytes if limits.kind == "cuda" else 4
    some = [v for v in (8, 4, 2, 1) if v <= min(widest, shape.columns)]
    even = [v for v in some if shape.columns % v == 0]
    if limits.max_cluster > 1 and even[0] < widest // 2:
        even = [unaligned.elements(shape, even[0], widest, limits), *even]
    return list(dict.fromkeys((*even, *some)))


def wanted(shape: Shape, vector: int, limits: DeviceLimits) -> Candidate:
    """The mapping that the rules name for accesses of `vector` elements, legal or not."""
    rung = _clustered(shape, vector, limits) if limits.max_cluster > 1 else _alone(shape, vector, limits)
    if shape.columns <= SHORT:
        width = min(limits.subgroup_size, 1 << max(0, math.ceil(math.log2(max(1.0, rung.lanes)))))
    else:
        width = _width(rung, shape, vector, limits)
    packing = rung.packing or _packing(shape, width, limits)
    return Candidate(
        width=width,
        packing=packing if rung.splits == 1 else 1,
        vector=vector,
        reuse=rung.reuse,
        splits=rung.splits,
        merged=rung.merged,
    )


def streamed(shape: Shape, vector: int, limits: DeviceLimits) -> Candidate | None:
    """Resident clusters of two groups for a stream of long 16-bit rows of a LayerNorm with weight and bias, or alike.

    None for others.

    The weights, as long as the row, are what such rows wait for, and here they stay in registers. A core holds one
    group: three halves of a row in shared memory, 32 elements of each a lane. With fewer rows than five a core the last
    ones take too long; and where one group of rows fits two cores easily, a long stream is as quick without.
    """
    n, cores = shape.columns, limits.cores or ASSUMED_CORES
    narrow = shape.storage_bytes < 4 and vector * shape.storage_bytes == 16
    if limits.max_cluster < 2 or not (narrow and shape.weighted and shape.streams > 3):
        return None
    if n % vector:
        return unaligned.resident(shape, vector, limits)
    if not 24576 < n <= 57344 or shape.rows < 5 * cores or (n <= 32768 and shape.rows > 16 * cores):
        return None
    width = math.ceil(n / 64 / limits.subgroup_size) * limits.subgroup_size
    if n % (2 * vector) and n <= 36864:
        # Every second row starts in the middle of a sector: those are 13 % quicker without.
        return None
    clusters = alike(cores // 2, n, vector)
    if not clusters:
        return None
    return Candidate(width=width, vector=vector, reuse="shared", splits=2, resident=2 * clusters)


def _width(rung: Rung, shape: Shape, vector: int, limits: DeviceLimits) -> int:
    """Whole subgroups: near the lanes of a group, and so that few are left without a packet in the last round.

    Where a row is split, every lane has to have one; where it is kept in registers, none may have too many.
    """
    lanes, packets = rung.lanes / rung.splits, shape.columns // vector / rung.splits

    def price(width: int) -> tuple[float, int]:
        idle = math.ceil(packets / width) * width / packets - 1
        return abs(math.log(width / lanes)) + rung.idle * idle, width

    step = limits.subgroup_size
    most = min(limits.max_threads, WIDEST, int(packets) if rung.splits > 1 else WIDEST)
    rounds = limits.private_scalars // vector if rung.reuse == "private" else math.inf
    least = math.ceil(math.ceil(shape.columns / vector) / rung.splits / rounds / step) * step
    least = min(max(step, least), max(step, most // step * step))
    return min(range(least, max(least, most) + 1, step), key=price)


def _even(n: int, splits: int) -> int:
    """Of `splits` or fewer pairs of groups, the most that leave every lane a packet of 8 and none over.

    A packet that some lanes lack stands under a condition, and no compiler asks for several streams at once from there.
    """
    even = splits
    while even and n % (2 * even * 8 * 32):
        even //= 2
    return even or splits


def _clustered(shape: Shape, vector: int, limits: DeviceLimits) -> Rung:
    n, cores = shape.columns, limits.cores or ASSUMED_CORES
    most = min(MOST_GROUPS, limits.max_cluster)
    if n <= SHORT:
        return Rung(lanes=n / 16 if shape.storage_bytes < 4 and shape.weighted else n / 8)
    if shape.rows < cores:
        if n <= 2048:
            return Rung(lanes=n / 6 if n % vector else n / 8)
        aligned = n % vector == 0 or n > 32768
        return _few(shape, most, cores) if aligned else unaligned.few(shape, most)
    if n > 65536:
        return _long(shape, most) if shape.storage_bytes >= 4 else _long_sixteen_bits(shape, most)
    if shape.rows < 2 * cores and n <= 4096:
        return Rung(lanes=n / 8, splits=1 if n <= 2048 else 2)
    if shape.rows < (4 if shape.storage_bytes < 4 else 3) * cores and 4096 < n <= 8192 and n % vector == 0:
        return _thin(shape, most, cores)
    if n % vector:
        return unaligned.stream(shape, most, cores)
    if shape.storage_bytes < 4 and vector > 1:
        return _sixteen_bits(shape, most, cores)
    if n <= (5632 if shape.reductions > 1 else 2048):
        return Rung(lanes=n / 8)
    if n <= 8192:
        return Rung(lanes=n / 16 if shape.weighted else n / 8, splits=2)
    if n < 16384:
        return Rung(lanes=n / 28, splits=min(4, most))
    if shape.weighted and n > 16384:
        return Rung(lanes=1024, splits=min(4, most)) if n <= 40960 else Rung(lanes=2048, splits=min(8, most))
    return Rung(lanes=max(1024, n / 32), splits=min(8, most))


def _thin(shape: Shape, most: int, cores: int) -> Rung:
    """A few rows a core: in parts, of which every core has about as many as another."""
    n = shape.columns
    if shape.storage_bytes >= 4:
        return Rung(lanes=n / 12, splits=min(4, most))
    if shape.weighted and (n <= 6144 or shape.rows < 3 * cores):
        return _some_norms(shape, cores)
    if shape.fused and n > 6144 and shape.rows <= 2 * cores:
        return Rung(lanes=n / 8, idle=10)
    if shape.reductions == 1:
        return Rung(lanes=n / 16, splits=2, idle=10)
    if shape.rows < 2 * cores:
        return Rung(lanes=480, idle=0)
    return Rung(lanes=n / 14, splits=2, reuse="shared", idle=10)


def _some_norms(shape: Shape, cores: int) -> Rung:
    """A LayerNorm in 16 bits of 4097 to 8192 columns, from two rows for five cores on to four a core.

    One group a row, of which a core holds two or more, and the same number for most lengths; two packets a lane where
    every core has three rows.
    """
    n, rows = shape.columns, shape.rows
    if rows >= 3 * cores:
        return Rung(lanes=n / 16, idle=10)
    if n > 7168 and rows < 2 * cores:
        return Rung(lanes=n / 16, splits=2)
    return Rung(lanes=max(480, n / 16), idle=0)


def _long(shape: Shape, most: int) -> Rung:
    """Streams of rows that a cluster can just hold."""
    n = shape.columns
    if shape.weighted:
        return Rung(lanes=n / 64, splits=min(most, 8))
    return Rung(lanes=n / 64 if shape.reductions > 1 else n / 32, splits=most)


def _long_sixteen_bits(shape: Shape, most: int) -> Rung:
    """Streams of 16-bit rows that a cluster of eight groups can just hold."""
    n = shape.columns
    if shape.reductions == 1:
        return Rung(lanes=n / 64, splits=min(most, 8 if n <= 131072 else 16), reuse="shared")
    if shape.weighted:
        return Rung(lanes=n / 42, splits=min(most, 8 if n <= 98304 else 16), reuse="shared")
    return Rung(lanes=n / 64, splits=most)


def _sixteen_bits(shape: Shape, most: int, cores: int) -> Rung:
    """Streams of 16-bit rows."""
    n = shape.columns
    if n <= 2560 and shape.weighted:
        return _short_norms(shape, cores)
    waves, two = shape.rows / cores, shape.reductions > 1
    if waves < (16 if two else 12) and not shape.fused and (n <= 1024 or (two and n <= 2048)):
        return Rung(lanes=n / (8 if n <= 1024 else 16), packing=2 if waves >= 8 else 1)
    if n < 1024 and not two and not shape.fused:
        return Rung(lanes=64, idle=0)
    if n <= 4096:
        # With more to read than the row, what is kept may be wider than 16 bits (a mask added): registers are as quick.
        alone = shape.reductions > 1 and not shape.weighted
        return Rung(
            lanes=n / 32 if shape.fused and n > 2048 else n / 16, reuse="shared" if alone else "private"
        )
    if shape.reductions == 1 and n <= 8192:
        return Rung(lanes=n / 16, splits=2) if shape.fused else Rung(lanes=n / 48)
    if shape.reductions == 1:
        splits = min(8, max(2, 1 << int(math.log2(n / 4096))), most)
        return Rung(lanes=max(128 * splits, n / 32), splits=splits)
    if n <= 8192 and shape.weighted and (n <= 6144 or shape.rows >= 8 * cores):
        return Rung(lanes=n / 32)
    if n <= 8192:
        return Rung(lanes=n / (24 if shape.weighted else 20), reuse="shared")
    if shape.weighted and n <= 16384:
        return Rung(lanes=n / 64)
    splits = parts(n / (16384 if shape.weighted else 8192), most)
    return Rung(lanes=n / 32, splits=splits, reuse="shared" if shape.weighted else "private")


def _short_norms(shape: Shape, cores: int) -> Rung:
    """Streams of a LayerNorm in 16 bits: small rows, several a group, once every core has enough of them."""
    n, waves = shape.columns, shape.rows / cores
    if n <= 1024:
        return Rung(lanes=32) if waves >= 24 else Rung(lanes=n / 8, packing=2 if waves >= 8 else 1)
    if waves >= 12:
        return Rung(lanes=64, idle=0)
    return Rung(lanes=min(192, n / 8), idle=0) if waves >= 8 else Rung(lanes=n / 16)


def _few(shape: Shape, most: int, cores: int) -> Rung:
    """Fewer rows than cores: what counts is how soon the last lane has its data."""
    n, rows = shape.columns, shape.rows
    if n > (65536 if shape.storage_bytes >= 4 else LONGEST) and rows * n <= HANDFUL:
        # A cluster has 16 groups: two launches use the rest of the device.
        lanes = 256 if rows <= 4 or shape.storage_bytes < 4 else 128
        return Rung(lanes=64 * lanes, splits=64, reuse="reload", merged=shape.reductions > 1)
    splits = parts(n / 2048 if n <= 8192 else min(n, 65536) / 6400, most)
    if shape.reductions > 1 and shape.storage_bytes < 4 and 4096 < n <= 8192 and 5 * rows > 2 * cores:
        return _some_norms(shape, cores) if shape.weighted else Rung(lanes=n / 16, idle=10)
    swept = shape.fused and shape.storage_bytes < 4 and n <= 8192
    if swept and n > 4096 and cores < 2 * rows:
        return Rung(lanes=n / 8, splits=2, idle=10)
    if n <= 65536 and 2 * splits * rows <= cores:
        splits = _even(n, splits) if swept else splits
        return Rung(lanes=n / 8, splits=min(most, 2 * splits), idle=1)
    if n <= 8192:
        return Rung(lanes=n / 14, splits=splits, idle=1)
    if splits >= 8 and rows * splits > cores:
        return _crowded(shape, most, cores)
    if n <= 65536:
        thick = shape.weighted and splits >= 4 and rows * splits > cores
        return Rung(lanes=min(n / (12 if thick else 8), cores * WIDEST / rows), splits=splits, idle=1)
    lane = 16
    if shape.reductions == 1 and 1 < rows <= 4:
        lane = 32
    elif shape.reductions > 1 and not shape.weighted and rows > 4:
        lane = 8
    return Rung(lanes=n / lane, splits=splits)


def _crowded(shape: Shape, most: int, cores: int) -> Rung:
    """Long rows of more groups than cores: small ones, and about as many as have a place at once."""
    groups, room = shape.rows * most, (1.25 if shape.storage_bytes < 4 else 2) * cores * WIDEST
    if shape.storage_bytes < 4 and shape.columns > 65536 and groups * SMALL_GROUP > room:
        return _crowded_sixteen_bits(shape, most)
    splits = most if groups * SMALL_GROUP <= room else min(most, 8)
    return Rung(lanes=splits * (320 if groups <= 2 * cores else SMALL_GROUP), splits=splits, idle=8)


def _crowded_sixteen_bits(shape: Shape, most: int) -> Rung:
    """Among them rows of which registers hold as much as a lane may keep: as many groups as a cluster has."""
    n = shape.columns
    if shape.weighted:
        return Rung(lanes=n / 36, splits=most, reuse="shared")
    if shape.reductions > 1:
        return Rung(lanes=n / 56, splits=most)
    return Rung(lanes=n / 48, splits=most if n >= 131072 else min(most, 8), reuse="shared")


def _alone(shape: Shape, vector: int, limits: DeviceLimits) -> Rung:
    """One group a row; few rows of more columns than it holds are split over launches, which Metal is spared.

    A second launch reads the partial results besides the row, more than an unsplit row asks for. On Metal, where no
    device has told whether a split pays, that decides; `full_scope` lists it, and `force` takes it.
    """
    n, cores = shape.columns, limits.cores or ASSUMED_CORES
    few, narrow, two = shape.rows < cores, shape.storage_bytes < 4, shape.reductions > 1
    if n > 65536:
        split = few and limits.kind != "metal"
        groups = min(32, 1 << (max(1, cores // shape.rows).bit_length() - 1)) if split else 1
        return Rung(lanes=512 * groups if split else WIDEST, splits=groups, reuse="reload", merged=two)
    if n <= SHORT:
        return Rung(lanes=n / 8)
    merged = two and not few and n > 2048 and not narrow
    if n > 20480:
        return Rung(lanes=512 if narrow else 1024 if two else 768, merged=merged)
    thin = shape.rows < 2 * cores and not few
    if n <= 4096:
        lane = (8 if few else 12 if thin else 16) if narrow and vector > 1 else 4 if thin and merged else 8
    elif n <= 8192:
        lane = 24 if narrow and vector > 1 else 16 if merged else 12
    else:
        lane = 12 if few else 64 if narrow and vector > 1 else 32 if merged else 43
    return Rung(lanes=n / lane, merged=merged)


def _packing(shape: Shape, width: int, limits: DeviceLimits) -> int:
    """Programs of a group: enough threads to fill one, none where every row can have a core to itself."""
    narrow = shape.storage_bytes < 4 and not shape.weighted
    wide = shape.columns <= SHORT and (narrow or limits.max_cluster <= 1)
    wide = wide or (shape.columns < 1024 and narrow and shape.reductions == 1 and limits.max_cluster > 1)
    threads = 256 if wide else 128
    packing = max(1, min(threads, limits.max_threads) // width)
    packing = 1 << (packing.bit_length() - 1)
    cores = limits.cores or ASSUMED_CORES
    while packing > 1 and shape.rows < packing * cores and width * packing // 2 >= limits.subgroup_size:
        packing //= 2
    return packing
