"""No call that runs what a file says: read from the syntax trees of all sources, with every exception named."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from tests.worlds import ROOT

SOURCES = sorted([*(ROOT / "vocabforge").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])

# Never right: they run code that a file or a text holds, or leave a door open.
BANNED = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "_pickle.load", "_pickle.loads", "_pickle.Unpickler",
    "marshal.load", "marshal.loads", "shelve.open", "dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads",
    "joblib.load", "pandas.read_pickle", "torch.jit.load", "torch.package.PackageImporter", "torch.hub.load",
    "torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline", "torch.distributed.checkpoint.load",
    "numpy.fromregex", "eval", "exec", "compile", "__import__", "code.interact", "os.system", "os.popen",
    "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn", "tempfile.mktemp", "os.tempnam",
    "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "yaml.unsafe_load_all", "yaml.full_load_all",
    "ssl._create_unverified_context", "jinja2.Environment", "jinja2.Template", "xml.dom.minidom.parse",
    "xml.dom.minidom.parseString", "xml.sax.parse", "xml.sax.parseString", "xml.etree.ElementTree.parse",
    "xml.etree.ElementTree.fromstring", "xml.etree.ElementTree.iterparse", "lxml.etree.parse", "lxml.etree.fromstring",
    "runpy.run_path", "runpy.run_module", "importlib.util.spec_from_file_location", "shutil.unpack_archive",
    "urllib.request.urlopen", "urllib.request.urlretrieve",
}  # fmt: skip
# Any method of this name, whatever it is called on.
BANNED_METHODS = {"extractall", "extract", "read_pickle"}
# (file, call): why it may stand.
ALLOWED = {
    ("vocabforge/evaluate/reports/page.py", "jinja2.Environment"): "our own page templates, with autoescape"
}
# The files that may open a pickle, and that only as weights.
PICKLES = {
    "vocabforge/vocab/subset/maps.py",
    "vocabforge/layouts/block.py",
    "vocabforge/models/checkpoint.py",
}
SAFE_LOADERS = {"_UniqueKeyLoader", "yaml.SafeLoader", "yaml.CSafeLoader"}
# Their from_pretrained may run a repository's code unless it is told not to; the names' own classes cannot.
AUTO = ("Auto", "pipeline")


def problems(text: str, name: str) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) of one source file."""
    nodes, names = _read(text)
    for node in nodes:
        if isinstance(node, ast.Call):
            called = _called(node.func, names)
            found = _problem(node, called, name)
            if found is not None and (name, called) not in ALLOWED:
                yield node.lineno, f"{called}: {found}"
        elif (
            "pickle" in text and isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load)
        ):
            reference = _called(node, names)
            if reference.startswith(("pickle.", "_pickle.")) and reference.split(".")[-1] in (
                "loads",
                "load",
                "Unpickler",
            ):
                yield node.lineno, f"{reference}: named without being called"


@functools.cache
def _read(
    text: str,
) -> tuple[list[ast.Import | ast.ImportFrom | ast.Call | ast.Attribute | ast.Name], dict[str, str]]:
    """The nodes that matter, and what imported names stand for."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, *((ast.Attribute, ast.Name) if "pickle" in text else ()))
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                names[one.asname or one.name.partition(".")[0]] = (
                    one.name if one.asname else one.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
    return nodes, names


def _called(function: ast.expr, names: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    parts.append(names.get(function.id, function.id) if isinstance(function, ast.Name) else "?")
    return ".".join(reversed(parts)).removeprefix("builtins.")


def _problem(node: ast.Call, called: str, name: str) -> str | None:
    words = {one.arg: one.value for one in node.keywords}
    last = called.rpartition(".")[2]
    if called in BANNED or (last in BANNED_METHODS and "." in called):
        return "runs or trusts what a file holds"
    for check in (_loads, _processes, _models, _network):
        found = check(called, last, words, name)
        if found is not None:
            return found
    return None


def _is(value: ast.expr | None, wanted: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is wanted


def _loads(called: str, last: str, words: dict[str | None, ast.expr], name: str) -> str | None:
    if called == "torch.load" and not (name in PICKLES and _is(words.get("weights_only"), True)):
        return "a pickle (only PICKLES may, with weights_only=True)"
    if called in ("numpy.load", "numpy.lib.npyio.NpzFile") and not _is(words.get("allow_pickle"), False):
        return "allow_pickle=False is missing"
    if called == "yaml.load":
        loader = words.get("Loader")
        if loader is None or ast.unparse(loader) not in SAFE_LOADERS:
            return "no safe loader"
    if last.endswith("SandboxedEnvironment") and name != "vocabforge/corpus/chat/template.py":
        return "chat templates are rendered by corpus/chat/template.py"
    return None


def _processes(called: str, last: str, words: dict[str | None, ast.expr], name: str) -> str | None:
    shell = words.get("shell")
    if called.startswith(("subprocess.", "asyncio.")) and shell is not None and not _is(shell, False):
        return "a shell"
    return "a shell" if last == "create_subprocess_shell" else None


def _models(called: str, last: str, words: dict[str | None, ast.expr], name: str) -> str | None:
    trust = words.get("trust_remote_code")
    if trust is not None and not _is(trust, False):
        return "code of a model's or data set's repository"
    owner = called.split(".")[-2] if "." in called else ""
    if last in ("from_pretrained", "from_config") and owner.startswith(AUTO) and trust is None:
        return "trust_remote_code=False is missing"
    if called.startswith("transformers.pipeline") and trust is None:
        return "trust_remote_code=False is missing"
    if called.startswith("datasets.") and last.startswith("load_dataset") and trust is not None:
        return "a data set's own code"
    return None


def _network(called: str, last: str, words: dict[str | None, ast.expr], name: str) -> str | None:
    if called.startswith("requests.") and "timeout" not in words:
        return "no timeout"
    if _is(words.get("verify"), False) and re.search("http|requests|library|Client", called):
        return "certificates are not checked"
    owner = called.rpartition(".")[0]
    client = last in ("Client", "AsyncClient") and owner.endswith(("httpx", "httpx2", "library", "_http"))
    return "no timeout" if client and "timeout" not in words else None


def test_no_source_calls_what_runs_foreign_code() -> None:
    assert len(SOURCES) > 300
    found = [
        f"{name}:{line}: {what}"
        for path in SOURCES
        for name in [path.relative_to(ROOT).as_posix()]
        for line, what in problems(path.read_text("utf-8"), name)
    ]
    assert found == []


def test_every_exception_is_still_needed() -> None:
    for name, called in ALLOWED:
        nodes, names = _read((ROOT / name).read_text("utf-8"))
        calls = {_called(node.func, names) for node in nodes if isinstance(node, ast.Call)}
        assert called in calls, (name, called)
    for name in PICKLES:
        assert "torch.load(" in (ROOT / name).read_text("utf-8"), name
