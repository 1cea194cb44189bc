"""Index polynomials: a normal form that multiplies symbolic extents out; TVM's own simplifier does not.

In goes an index, out comes a sum of multiples of monomials; whatever is not a sum or a product is an atom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from math import gcd
from typing import Any, TypeAlias

from tvm import tirx

from . import compat

Monomial: TypeAlias = tuple[int, ...]
"""Atom numbers in order; the empty one is 1."""
Polynomial: TypeAlias = dict[Monomial, int]

ONE: Monomial = ()


class Polynomials:
    """Numbers the atoms of one function's indices."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.atoms: list[Any] = []

    def number(self, atom: Any) -> int:
        """The number of a variable, or of an index that is neither a sum nor a product."""
        key = atom if isinstance(atom, compat.Var) else compat.StructuralKey(atom)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.atoms)
            self.atoms.append(atom)
        return found

    def of(self, index: Any) -> Polynomial:
        """The normal form of `index`."""
        if isinstance(index, tirx.IntImm):
            return {ONE: int(index.value)} if index.value else {}
        if isinstance(index, tirx.Add):
            return added(self.of(index.a), self.of(index.b))
        if isinstance(index, tirx.Sub):
            return added(self.of(index.a), scaled(self.of(index.b), -1))
        if isinstance(index, tirx.Mul):
            return multiplied(self.of(index.a), self.of(index.b))
        return {(self.number(index),): 1}

    def index(self, polynomial: Polynomial) -> Any:
        """The index that `polynomial` stands for, in int64."""
        total: Any = None
        for monomial, factor in sorted(polynomial.items(), key=lambda t: (-len(t[0]), t[0])):
            term: Any = None
            for atom in monomial:
                term = self.atoms[atom] if term is None else tirx.Mul(term, self.atoms[atom])
            if term is None:
                term = tirx.IntImm("int64", factor)
            elif factor != 1:
                term = tirx.Mul(term, tirx.IntImm("int64", factor))
            total = term if total is None else tirx.Add(total, term)
        return tirx.IntImm("int64", 0) if total is None else total


def added(a: Polynomial, b: Polynomial) -> Polynomial:
    """The sum."""
    total = dict(a)
    for monomial, factor in b.items():
        value = total.get(monomial, 0) + factor
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    return total


def scaled(a: Polynomial, factor: int) -> Polynomial:
    """The multiple."""
    return {m: v * factor for m, v in a.items()} if factor else {}


def multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    """The product."""
    total: Polynomial = {}
    for m, v in a.items():
        for n, w in b.items():
            total = added(total, {tuple(sorted(m + n)): v * w})
    return total


def coefficient(a: Polynomial, atom: int) -> Polynomial | None:
    """What `atom` is multiplied by; None where it stands squared."""
    found: Polynomial = {}
    for monomial, factor in a.items():
        times = monomial.count(atom)
        if times > 1:
            return None
        if times:
            found[tuple(n for n in monomial if n != atom)] = factor
    return found


def without(a: Polynomial, atoms: Callable[[int], bool]) -> Polynomial:
    """The terms of `a` that hold none of `atoms`."""
    return {m: v for m, v in a.items() if not any(atoms(n) for n in m)}


def divided(a: Polynomial, divisor: Monomial, factor: int) -> tuple[Polynomial, Polynomial]:
    """(q, r) with a = q · divisor + r, term by term."""
    quotient: Polynomial = {}
    rest: Polynomial = {}
    for monomial, value in a.items():
        left = list(monomial)
        try:
            for atom in divisor:
                left.remove(atom)
        except ValueError:
            rest[monomial] = value
            continue
        if value % factor:
            rest[monomial] = value
        else:
            quotient[tuple(left)] = value // factor
    return quotient, rest


def common(factors: Iterable[int]) -> int:
    """The greatest common divisor; 0 of nothing."""
    return reduce(gcd, factors, 0)
