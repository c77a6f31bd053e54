"""What the site needs beyond the Markdown files of docs/: mkdocs calls the functions named ``on_*``.

- Equations become MathML when the site is built, so that no script is needed to read them.
- README.md, CONTRIBUTING.md and CHANGELOG.md are pages, and so is every file of the repository that a page links to.
- The tables of docs/commands.md and docs/settings.md are made from the command line and the configurations themselves,
  that of docs/dashboard.md from the files in docs/results.

A warning fails the build, which is strict.
"""

from __future__ import annotations

import html
import logging
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboard import dashboard_html  # mkdocs looks for it in this folder
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
_NO_TEXT = re.compile(r"<(pre|code|div|span)\b[^>]*>.*?</\1>|<[^>]*>", re.DOTALL)
_TAG = re.compile(r"\\tag\{([^}]*)\}")
_LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".py": "python"}
log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from files outside docs/."""
    for source, name in PAGES.items():
        text = _with_links_moved((ROOT / source).read_text("utf-8"), source, name)
        files.append(File.generated(config, name, content=text))
    linked = {path for file in files.documentation_pages() for path in _repository_links(file)}
    for path in sorted(linked - set(PAGES)):
        language = _LANGUAGES.get(Path(path).suffix, "text")
        text = f"# {path}\n\n```{language}\n{(ROOT / path).read_text('utf-8').rstrip()}\n```\n"
        files.append(File.generated(config, _page_of(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that leave docs/ go to the pages made from those files; the commands' tables get their place."""
    source = page.file.src_uri
    if source in MADE:
        place, make = MADE[source]
        if place not in markdown:
            log.warning(f"{source}: the line {place} is missing")
        markdown = markdown.replace(place, make())
    return _with_links_moved(markdown, f"docs/{source}", source)


def on_page_content(html_text: str, page: Any, config: Any, files: Files) -> str:
    """Equations as MathML."""
    where = page.file.src_uri
    made = _EQUATION.sub(lambda found: _mathml(found.group(1), found.group(2), where), html_text)
    for line in _NO_TEXT.sub("", made).splitlines():
        if "$" in line:
            log.warning(f"{where}: a dollar sign is left, so an equation was not read as one: {line.strip()}")
    return made


def _mathml(tag: str, body: str, where: str) -> str:
    from latex2mathml.converter import convert

    latex = html.unescape(body).strip()[2:-2].strip()  # without \( \) or \[ \]
    number = "".join(f'<span class="number">({each})</span>' for each in _TAG.findall(latex))
    try:
        made = convert(_TAG.sub("", latex), display="block" if tag == "div" else "inline")
    except Exception as error:  # noqa: BLE001  whatever it is, it is a fault of the equation
        log.warning(f"{where}: not an equation ({type(error).__name__}: {error}): {latex}")
        return body
    if "\\" in made:
        log.warning(f"{where}: a command that latex2mathml does not know: {latex}")
    title = html.escape(latex, quote=True)
    return f'<{tag} class="equation" title="{title}" data-search-exclude>{made}{number}</{tag}>'


def _repository_links(file: File) -> Iterator[str]:
    """Existing files outside docs/ that a page links to, as paths from the repository's root."""
    for found in _LINK.finditer(file.content_string):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(file.src_uri), found.group(2)))
        if not path.startswith(("docs/", "..")) and (ROOT / path).is_file():
            yield path


def _with_links_moved(text: str, source: str, page: str) -> str:
    return _LINK.sub(lambda found: _moved(found, source, page), text)


def _moved(found: re.Match[str], source: str, page: str) -> str:
    """A link of ``source`` (path from the root) as it has to be in the site's ``page``."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found.group(2)))
    if path.startswith("docs/"):
        path = path.removeprefix("docs/")
    elif path in PAGES:
        path = PAGES[path]
    elif (ROOT / path).is_file() and not path.startswith(".."):
        path = _page_of(path)
    else:
        return found.group(0)
    return found.group(1) + posixpath.relpath(path, posixpath.dirname(page) or ".") + found.group(3)


def _page_of(path: str) -> str:
    return f"files/{path}.md"


def commands_markdown() -> str:
    """A section a command: what it does, and its arguments and options with defaults."""
    import typer.main

    from vocabforge.cli import COMMANDS
    from vocabforge.cli.app import build_app
    from vocabforge.core.registry import load_attribute

    app = build_app({name: load_attribute(at) for name, at in COMMANDS.items()}, all_names=list(COMMANDS))
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    subcommands = getattr(command, "commands", {})
    lines = [f"### {name}", "", _prose(command.help or "")]
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        table = ["| option | default | meaning |", "|---|---|---|", *rows]
        lines += ["", '<div class="options" markdown>', "", *table, "", "</div>"]
    lines += [f"\n{_command(f'{name} {inner}', each)}" for inner, each in subcommands.items()]
    return "\n".join(lines)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        name = ", ".join(f"`{each}`" for each in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    if callable(default) or default is None or default is False or default == () or default == []:
        default = "required" if parameter.required else ""
    elif default is True:
        default = f"`{parameter.opts[0]}`"
    else:
        default = f"`{getattr(default, 'value', default)}`"
    meaning = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| {name} | {default} | {meaning} |"


def _prose(text: str) -> str:
    return "\n".join(line.strip() for line in text.replace("\b", "").splitlines()).strip()


def settings_markdown() -> str:
    """A table for each section of a recipe."""
    from vocabforge.cli.training.settings import settings_of
    from vocabforge.train.config import TrainConfig

    lines: list[str] = []
    section = None
    for one in settings_of(TrainConfig):
        above = one.path.partition(".")[0] if "." in one.path or one.kind == "section" else ""
        if above != section:
            section = above
            lines += ["", f"## {above or 'Top level'}", "", "| key | takes | default | meaning |"]
            lines.append("|---|---|---|---|")
        cells = (f"`{one.path}`", one.kind, f"`{one.default}`" if one.default else "required", one.text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


# page -> the line that gives its place to what is made, and what makes it
MADE = {
    "commands.md": ("<!-- commands -->", commands_markdown),
    "dashboard.md": ("<!-- dashboard -->", dashboard_html),
    "settings.md": ("<!-- settings -->", settings_markdown),
}
