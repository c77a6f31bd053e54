"""Progress: what is said when, and that work which reports nothing is no silence."""

from __future__ import annotations

import io
import itertools
import threading
import time

import pytest

from tests.core.progress_support import Clock, fake_clock
from vocabforge.core import progress
from vocabforge.core.console import say
from vocabforge.core.progress import ProgressBar, hushed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return fake_clock(monkeypatch)


def test_off_a_terminal_progress_is_sparse_whole_lines(clock: Clock, capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich believe in a terminal
    with ProgressBar("count", 1000, "steps") as bar:
        for _ in range(100):  # a hundred seconds
            clock.now += 1.0
            bar.update(10, note="loss 1.0")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert "\x1b" not in err
    assert len(lines) == 100 // 8 + 1
    assert lines[0].startswith("count | ")
    assert lines[1] == "count | 16% | 10.0 steps/s | 16 s | 84 s left | loss 1.0"
    assert lines[-1] == "count | 100% | 10.0 steps/s | 100 s | loss 1.0"


def test_no_work_says_nothing(clock: Clock, capsys) -> None:
    with ProgressBar("judge the divergences", 0, "divergences"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (2.5e6, "2.5M rows/s"),
        (0.5, "0.5 rows/s"),
        (0.07, "4.2 rows/min"),
        (1 / 600, "6.0 rows/h"),
        (0.0, "0.0 rows/s"),
    ],
)
def test_a_slow_rate_is_given_in_a_longer_time(rate: float, shown: str) -> None:
    assert progress.human_rate(rate, "rows") == shown


def lines_of_silent_work(clock: Clock, capsys, seconds: int) -> list[tuple[float, str]]:
    """Lines that come while the main thread does nothing, each with its time."""
    found: list[tuple[float, str]] = []
    for _ in range(seconds):
        clock.now += 1.0
        wait = time.perf_counter() + 0.02  # some beats of the thread
        while time.perf_counter() < wait:
            time.sleep(0.005)
        found += [(clock.now, line) for line in capsys.readouterr().err.splitlines()]
    return found


def test_work_that_reports_nothing_is_told_of_every_ten_seconds(clock: Clock, capsys) -> None:
    with ProgressBar("load the target"):
        found = lines_of_silent_work(clock, capsys, 60)
        times = [100.0, *(at for at, _ in found), 160.0]
        assert max(after - before for before, after in itertools.pairwise(times)) <= 10
        assert found[0][1].startswith("load the target | ")
    assert capsys.readouterr().err == "load the target | 60 s\n", "its end, because it was told of"


def test_the_innermost_work_is_told_of(clock: Clock, capsys) -> None:
    with ProgressBar("eval"):
        with ProgressBar("load the target"):
            assert [text.split(" |")[0] for _, text in lines_of_silent_work(clock, capsys, 10)] == [
                "load the target"
            ]
        assert capsys.readouterr().err == "load the target | 10 s\n"
        with ProgressBar("short"):
            clock.now += 2
        with ProgressBar("Evaluating", 4, "answers", asides={"warm-up": 1}) as bar, bar.aside("warm-up"):
            ((_, text),) = lines_of_silent_work(clock, capsys, 10)
            assert text.startswith("Evaluating | 0% | ")
            assert text.endswith(" | warm-up")
    assert "short" not in capsys.readouterr().err


def test_what_other_processes_tell_is_not_mixed_with_ours(clock: Clock, capsys) -> None:
    with ProgressBar("demo"), hushed():
        assert lines_of_silent_work(clock, capsys, 20) == []


def test_the_thread_ends_with_the_work(clock: Clock) -> None:
    before = set(threading.enumerate())
    with ProgressBar("load the target"):
        (thread,) = set(threading.enumerate()) - before
    thread.join(30)
    assert not thread.is_alive()


def interrupted_bar(error: BaseException) -> None:
    with ProgressBar("count", 10, "steps") as bar:
        bar.update(5, note="loss 1.0")
        raise error


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return terminal


def test_on_a_terminal_there_is_one_bar_and_it_ends_on_exceptions(monkeypatch) -> None:
    terminal = on_terminal(monkeypatch)
    with pytest.raises(ValueError, match="stop"):
        interrupted_bar(ValueError("stop"))
    text = terminal.getvalue()
    assert "count" in text
    assert "50%" in text
    assert "loss 1.0" in text
    assert "\x1b[?25h" in text, "the cursor is shown again"


def test_on_a_terminal_work_without_a_count_shows_after_a_second_and_leaves_nothing(monkeypatch, clock):
    terminal = on_terminal(monkeypatch)
    with ProgressBar("load the target"):
        time.sleep(0.02)
        assert terminal.getvalue() == ""
        clock.now += 1.5
        end = time.perf_counter() + 30
        while "load the target" not in terminal.getvalue() and time.perf_counter() < end:
            time.sleep(0.01)
        assert "load the target" in terminal.getvalue()
        progress.hide()  # results follow
        shown = len(terminal.getvalue())
        clock.now += 5
        time.sleep(0.02)
        assert len(terminal.getvalue()) == shown
        say("a message")
    assert terminal.getvalue().endswith("a message\n")


def test_other_ranks_are_silent(clock: Clock, capsys, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "1")
    say("hello")
    with ProgressBar("count", 10, "steps") as bar:
        clock.now += 100
        bar.update(10)
    assert capsys.readouterr() == ("", "")
