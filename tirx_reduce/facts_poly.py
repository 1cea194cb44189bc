"""Index polynomials: a normal form that multiplies symbolic extents out; TVM's own simplifier does not.

In goes an index, out comes a sum of multiples of monomials; whatever is not a sum or a product is an atom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

    def joined(self, polynomial: Polynomial, simplify: Callable[[Any], Any]) -> Polynomial:
        """`polynomial` with x put together where both its parts stand: (x // d)·d + x % d = x."""
        present = {n for m in polynomial for n in m}
        for number in sorted(present):
            rest = self.atoms[number]
            factor = coefficient(polynomial, number)
            if not isinstance(rest, tirx.FloorMod) or factor is None:
                continue
            for quotient, whole in self._quotients(rest, present, simplify):
                if coefficient(polynomial, quotient) == multiplied(factor, self.of(rest.b)):
                    others = without(polynomial, {number, quotient}.__contains__)
                    return self.joined(added(others, multiplied(factor, self.of(whole))), simplify)
        return polynomial

    def _quotients(
        self, rest: Any, present: set[int], simplify: Callable[[Any], Any]
    ) -> Iterator[tuple[int, Any]]:
        """(atom, x) with x = atom · d + `rest`, where `rest` is some y % d: x is y, or y % D with d dividing D."""
        whole = self.of(simplify(tirx.FloorDiv(rest.a, rest.b)))
        if len(whole) == 1 and set(whole.values()) == {1}:
            (monomial,) = whole
            if len(monomial) == 1:
                yield monomial[0], rest.a
        for number in sorted(present):
            atom = self.atoms[number]
            if not (isinstance(atom, tirx.FloorDiv) and isinstance(atom.a, tirx.FloorMod)):
                continue
            same = compat.equal(atom.b, rest.b) and compat.equal(atom.a.a, rest.a)
            fixed = isinstance(rest.b, tirx.IntImm) and isinstance(atom.a.b, tirx.IntImm)
            if same and fixed and atom.a.b.value % rest.b.value == 0:
                yield number, atom.a

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
