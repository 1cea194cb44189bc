"""Tables, numbers, colours and progress."""

from __future__ import annotations

import io

import pytest

from tirx_reduce.bench.terminal import Progress, Style, duration, number, table, wants_colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_tables_line_up_and_numbers_stand_to_the_right() -> None:
    lines = table(["name", "µs"], [["softmax", "9.5"], ["norm", "120"]])
    assert lines == ["name      µs", "softmax  9.5", "norm     120"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2592, "2592"),
        (57.414, "57.41"),
        (0.0481, "0.04810"),
        (1.2345678e-7, "1.235e-07"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 65, 7203)] == ["0:00", "1:05", "2:00:03"]


def test_colours_switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal(), False)
    assert not wants_colour(Terminal(), True)
    assert not wants_colour(io.StringIO(), False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal(), False)
    assert Style(False)("x", "red") == "x"
    assert Style(True)("x", "red", "bold") == "\033[31;1mx\033[0m"


def test_progress_says_the_time_left() -> None:
    now = [0.0]
    stream = Terminal()
    bar = Progress(4, "trials", stream=stream, clock=lambda: now[0])
    now[0] = 30.0
    bar.step("softmax 768x6144")
    assert bar.text() == "trials 1/4, 1:30 left"
    assert stream.getvalue() == "\r\033[Ktrials 1/4, 1:30 left  softmax 768x6144"
    bar.close()
    assert stream.getvalue().endswith("\r\033[K")


def test_progress_is_silent_where_nobody_looks() -> None:
    stream = io.StringIO()
    bar = Progress(2, "trials", stream=stream)
    bar.step()
    bar.close()
    assert stream.getvalue() == ""
