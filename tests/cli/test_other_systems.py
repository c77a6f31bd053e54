"""Every command loads and helps where the modules of Unix are missing, as on Windows. Nothing has run there."""

from __future__ import annotations

import subprocess
import sys

from tests.worlds import ROOT

UNIX = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty")
CODE = f"""
import sys
for name in {UNIX!r}:
    sys.modules[name] = None
import vocabforge
from click.testing import CliRunner
import typer.main
from vocabforge.cli import COMMANDS
from vocabforge.cli.app import build_app
from vocabforge.core.registry import load_attribute
names = list(COMMANDS)
program = typer.main.get_command(build_app({{name: load_attribute(COMMANDS[name]) for name in names}}, all_names=names))
for name in names:
    done = CliRunner().invoke(program, [name, "--help"])
    assert done.exit_code == 0, (name, done.output, done.exception)
print(len(names))
"""


def test_every_command_helps_without_the_modules_of_unix() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
