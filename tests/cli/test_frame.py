"""The frame of the command line: help, versions, exit codes, interrupts, closed pipes, first mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.cli.cli_support import assert_user_error, call, invoke
from tests.worlds import ROOT, World
from vocabforge.cli import COMMANDS, HEADINGS, main
from vocabforge.cli.app import build_app
from vocabforge.core.errors import DataError, UsageError
from vocabforge.core.registry import load_attribute

HEAVY = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "matplotlib", "safetensors", "jinja2")
HELP_OF_ALL = f"""
import contextlib, io, json, sys, time
from vocabforge.cli import COMMANDS, main
told = {{}}
for words in [[], ["--help"], ["-h"], ["--version"], *([name, "--help"] for name in COMMANDS)]:
    out = io.StringIO()
    sys.argv = ["vocabforge", *words]
    start = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
            code = None
        except SystemExit as done:
            code = done.code
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    told[" ".join(words)] = {{"code": code, "text": out.getvalue(), "heavy": heavy}}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, dict]:
    """Every help page, from one process that has run nothing else."""
    done = call(code=HELP_OF_ALL)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_loads_nothing_heavy(helps: dict[str, dict]) -> None:
    assert {words: page["heavy"] for words, page in helps.items() if page["heavy"]} == {}


def test_the_programs_help_lists_every_command_with_a_sentence(helps: dict[str, dict]) -> None:
    for words in ("--help", "-h"):
        assert helps[words]["code"] == 0
        for name in COMMANDS:
            assert re.search(rf"{name} +\w.*", helps[words]["text"]), name
    assert helps[""]["text"].strip() == helps["--help"]["text"].strip(), "called bare, it shows its help"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_page_that_says_all(helps: dict[str, dict], name: str) -> None:
    page = helps[f"{name} --help"]
    assert page["code"] == 0
    assert "--json" in page["text"]
    silent = re.findall(r"│ {1,2}\*? {0,6}(--[\w-]+)[^a-z│]*│", page["text"])
    assert not silent, "options without a word of help"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "No such command"),
        (["--nonsense"], "No such option"),
        (["generate", "--nonsense"], "No such option"),
        (["generate", "--prompt", "x"], "Missing option '--target'"),
        (["train-drafter", "optim.lr=1"], "Missing option '--config'"),
        (["export", "--drafter", "x"], "Missing option"),
        (["generate", "--target", "x", "--prompt", "x", "--max-new-tokens", "0"], "max-new-tokens"),
        (["generate", "--target", "x", "--prompt", "x", "--seed", str(2**70)], "seed"),
        (["doctor", "unwanted"], "unexpected extra argument"),
    ],
)
def test_a_wrong_command_line_is_2(words: list[str], said: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["vocabforge", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert said in " ".join(err.replace("│", " ").split())
    assert out == ""


def test_from_a_shell_a_mistake_is_a_code_and_no_traceback() -> None:
    done = call("recipes", "show", "nowhere")
    assert done.returncode == 2, done.stderr
    assert "Error" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def run(function):
    return CliRunner().invoke(build_app({"doctor": function}, list(COMMANDS)), ["doctor"])


def raising(error: BaseException):
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("wrong", got="[bold]x[/bold]"), 2, "got: [bold]x[/bold]"),
        (DataError("broken", remedy="mend it"), 1, "remedy: mend it"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (PermissionError(13, "Permission denied", "/root/x"), 1, "Permission denied: /root/x"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), 1, "out of memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            1,
            "out of memory",
        ),
    ],
)
def test_what_a_user_can_cause_is_a_message_and_a_code(error: BaseException, code: int, said: str) -> None:
    assert_user_error(run(raising(error)), code, said)


@pytest.mark.parametrize("error", [ValueError("bug"), RuntimeError("bug"), OSError("bug"), AssertionError()])
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    assert run(raising(error)).exception is error


def start(*arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "vocabforge", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A suite that runs in the background of a shell inherits an ignored SIGINT, and would pass it on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_ctrl_c_in_the_middle_of_a_command(pristine: World, tmp_path: Path) -> None:
    """Finished parts are kept for the next run, nothing else, and the way on is said."""
    (tmp_path / "in.txt").write_text("a word and another one\n" * 300_000)
    run = start(
        *("count-freq", "--tokenizer", pristine.target, "--input", tmp_path / "in.txt", "--shard-mb", "1"),
        *("--text-unit", "line", "--engine", "plain", "--output", tmp_path / "out"),
    )
    deadline = time.monotonic() + 60
    partial = tmp_path / "out.partial"
    while not (partial.is_dir() and any(partial.glob("shard-*"))) and time.monotonic() < deadline:
        assert run.poll() is None, run.communicate()[1]
        time.sleep(0.005)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 130, err
    assert "Traceback" not in err
    assert "Interrupted" in err
    assert "run the same command again" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.txt", "out.partial"]


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    run = start("recipes", "--json")
    run.stdout.close()
    err = run.stderr.read()
    run.stderr.close()
    assert run.wait(timeout=60) == 1
    assert "Traceback" not in err
    assert "Broken" not in err


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("columns", ["60", "80", "100", "140"])
def test_no_help_page_cuts_the_name_of_an_option(name, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    app = build_app({name: load_attribute(COMMANDS[name])}, list(COMMANDS))
    page = CliRunner().invoke(app, [name, "--help"]).output
    options = {word for one in typer.main.get_command(app).commands[name].params for word in one.opts}  # type: ignore[attr-defined]
    assert not {word for word in options if word.startswith("--") and word not in page}
    assert not re.search(r"--[\w-]+…", page)


def every_command(*words: str):
    commands = {name: load_attribute(COMMANDS[name]) for name in COMMANDS}
    app = build_app(commands, list(COMMANDS), HEADINGS)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})


def test_a_part_of_a_commands_name_names_the_commands() -> None:
    assert_user_error(every_command("train"), 2, "Did you mean train-drafter?")
    assert_user_error(every_command("freq", "--output", "x"), 2, "Did you mean count-freq or merge-freq?")
    assert_user_error(every_command("cuont-freq"), 2, "Did you mean count-freq?")
    assert_user_error(every_command("nonsense"), 2, "No such command 'nonsense'.")


@pytest.mark.parametrize("command", ["train-drafter", "capture"])
def test_a_setting_written_as_an_option_is_answered_with_how_it_is_written(command: str) -> None:
    assert_user_error(invoke(command, "--optim.lr=3"), 2, "No such option: --optim.lr.", "optim.lr=VALUE")
    assert_user_error(invoke(command, "--learning-rate", 3), 2, "without dashes", "learning_rate=VALUE")


def test_misspelt_options_and_words_behind_two_dashes_stay_what_they_were() -> None:
    assert_user_error(invoke("train-drafter", "--confg", "x"), 2, "--confg", "--config")
    assert_user_error(
        invoke("train-drafter", "--config", "/nowhere.yaml", "--", "--target"),
        2,
        "cannot read the configuration",
    )
    assert_user_error(invoke("eval", "--optim.lr=3"), 2, "No such option")


def test_the_programs_help_has_every_command_under_a_heading() -> None:
    page = every_command("--help").output
    places = [page.index(f"─ {heading} ─") for heading in HEADINGS.values()]
    assert places == sorted(places)
    assert "─ Commands ─" not in page
    assert next(iter(COMMANDS)) in HEADINGS
    for first, place in zip(HEADINGS, places, strict=True):
        assert re.match(rf"[^\n]*\n│ {first} ", page[place:])


UNIX = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty")
WITHOUT_UNIX = f"import sys; sys.modules.update(dict.fromkeys({UNIX!r}))\n{HELP_OF_ALL}"


def test_every_command_helps_without_the_modules_of_unix(helps: dict[str, dict]) -> None:
    """As on Windows, where nothing has run."""
    done = call(code=WITHOUT_UNIX)
    assert done.returncode == 0, done.stderr
    assert {words: page["code"] for words, page in json.loads(done.stdout).items()} == {
        words: page["code"] for words, page in helps.items()
    }


@pytest.mark.parametrize("variable", ["COMP_WORDS", "_TYPER_COMPLETE_ARGS"])  # bash; zsh, fish, PowerShell
def test_a_shell_completes_the_options_of_a_command(variable: str) -> None:
    """Other commands are only described for the help page."""
    shell = "bash" if variable == "COMP_WORDS" else "zsh"
    asked = {
        "_VOCABFORGE_COMPLETE": f"complete_{shell}",
        variable: "vocabforge count-freq --tok",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from vocabforge.cli import main; sys.argv[0] = 'vocabforge'; main()",
        ],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--tokenizer" in done.stdout, done.stderr
    assert "--tokens" in done.stdout
