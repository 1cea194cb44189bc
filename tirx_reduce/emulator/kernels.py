"""What is known of a device text once it is read: kernels, parameters, arrays."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UnsupportedSource


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a Metal argument struct; each takes 8 bytes."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of a kernel."""

    name: str
    type: str
    """The type without qualifiers; of a pointer or reference, what it points to."""
    kind: str
    """`pointer`, `reference` (a Metal constant struct) or `value`."""
    constant: bool
    """Points to what the kernel may not write."""
    granule: int
    """Bytes of the smallest element that the text stores or loads through it."""
    stored: bool
    """The text stores through it."""
    aliased: bool
    """The text takes a pointer of it that it may store through."""
    fields: tuple[Field, ...] = ()
    """Members of the struct that a reference refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One array of a kernel, in threadgroup or thread memory."""

    name: str
    type: str
    dims: str
    """`[4][2]`; empty for a scalar, `[]` where the launch gives the size."""
    align: int
    granule: int
    line: int
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of a text."""

    name: str
    parameters: tuple[Parameter, ...]
    arrays: tuple[Array, ...]
    max_threads: int | None
    """What the text itself promises (`__launch_bounds__`)."""
    line: int
    call: tuple[str, ...]
    """The C++ arguments of a call, from the array `a` of pointers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A text that has been read."""

    kind: str
    text: str
    kernels: tuple[Kernel, ...]
    program: str
    """The C++ to compile."""

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        known = ", ".join(k.name for k in self.kernels)
        raise UnsupportedSource(f"no kernel {name!r} in the text; it has {known}")
