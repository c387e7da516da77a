"""House rules, checked on the sources, so that no one has to remember them."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import zip_longest
from pathlib import Path

import msgspec
import pytest
import typer

import precede
from precede import __version__
from precede.command_line import COMMANDS, application
from precede.ingest.extras import EXTRAS
from precede.streaming.settings import TABLES, Settings
from precede.udfs.orders import ORDERS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def tracked() -> list[Path]:
    """The files of the repository; in a copy without history, all that are not hidden, built or cached."""
    try:
        listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True, stderr=subprocess.DEVNULL)
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        names = [
            str(path) for path in found if not re.search(r"(^|/)(\.|build/|__pycache__/)|\.egg-info", path.as_posix())
        ]
    return sorted(ROOT / name for name in names if (ROOT / name).is_file())


TRACKED = tracked()
SOURCES = [path for path in TRACKED if path.suffix == ".py"]
PAGES = [path for path in TRACKED if path.suffix == ".md"]

# Imports point one way: udfs <- ingest <- streaming <- precede.
ROOMS = {
    "udfs": {"udfs"},
    "ingest": {"ingest", "udfs"},
    "streaming": {"streaming", "ingest", "udfs"},
    "precede": {"precede", "streaming", "ingest", "udfs"},
}

ERRORS = ("Refused", "Unreachable", "AccessDenied", "Unconfirmed", "Closed", "Hole", "Difference", "CallFailed")

# The kernel only computes. Other modules reach outside (files, clocks, chance, threads) or write what another version
# cannot read (pickle), and then the same log would no longer give the same bytes.
KERNEL_MAY_IMPORT = {
    *("__future__", "abc", "base64", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum", "functools"),
    *("hashlib", "heapq", "hmac", "itertools", "json", "math", "operator", "re", "string", "struct", "typing", "zlib"),
    *("udfs", "msgspec"),
}
KERNEL_MAY_NOT_CALL = {
    "open",
    "print",
    "input",
    "eval",
    "exec",
    "hash",
}  # hash of a string differs from process to process
VERIFYING = {"cryptography"}  # for udfs/records/signatures.py alone: Ed25519 computes, but slowly without a library
FACING_SPARK = {"gc", "numpy", "pandas", "pyarrow", "pyspark"}  # for udfs/shard.py alone
HASHING = {"xxhash"}  # for udfs/shard.py alone: it tells the shard of a key as Spark does
MORE_FOR = {"shard.py": FACING_SPARK | HASHING, "signatures.py": VERIFYING}

LINES_MAX = 700  # no limit is a reason to cut one subject in two

PAGE_OF_AN_ORDER = [
    *("Guarantee", "What a message carries", "When it waits", "Example", "With loss", "Cost", "When to choose it"),
]


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """The top-level name of everything that a file imports, wherever in the file; of precede itself, the room."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (top_level(name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "precede":
                names = [f"precede.{name.name}" for name in node.names]
            yield from map(top_level, names)


def top_level(name: str) -> str:
    """`precede.udfs.engine.group` stands in the room `udfs`; a name that no room below has is of the room `precede`."""
    first, _, rest = name.partition(".")
    room = rest.partition(".")[0]
    return room if first == "precede" and room in ROOMS else first


def name_of(requirement: str) -> str:
    """The distribution that a line of pyproject.toml or constraints.txt names."""
    return re.split(r"[=<>\[]", requirement)[0].replace("_", "-").lower()


def of_extras(*extras: str) -> list[str]:
    """What these extras bring."""
    return [line for extra in extras for line in PROJECT["project"]["optional-dependencies"][extra]]


def of_room(room: str) -> list[Path]:
    return [path for path in SOURCES if short(path).startswith(f"{room}/")]


def flags_of(command: str) -> set[str]:
    """The flags of a command and its subcommands."""
    app = typer.main.get_command(application([command]))
    assert hasattr(app, "commands")
    found = app.commands[command]
    levels = [found, *getattr(found, "commands", {}).values()]
    return {flag for level in levels for parameter in level.params for flag in parameter.opts}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    for path in of_room(room):
        wrong = set(imports(path)) & (set(ROOMS) | {"tests", "bench", "examples"}) - ROOMS[room]
        assert not wrong, f"{short(path)} may not import {wrong}"


def modules_imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of the repository that a file imports when it is loaded, or that its type annotations need."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                full = [f"{node.module}.{name.name}" for name in node.names]
                found |= {name if name in modules else str(node.module) for name in full}
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                nodes.append(node)
    return found & set(modules)


@pytest.mark.parametrize("room", ["ingest", "streaming", "precede"])
def test_no_imports_form_a_cycle(room: str) -> None:
    prefix = "" if room == "precede" else "precede."
    names = {
        prefix + short(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in of_room(room)
    }
    imported = {name: modules_imported(path, names) - {name} for name, path in names.items()}
    while free := [name for name, needs in imported.items() if not needs]:
        for name in free:
            del imported[name]
        for needs in imported.values():
            needs.difference_update(free)
    assert imported == {}, "these import each other"


def test_nothing_but_the_command_line_imports_a_command() -> None:
    commands = re.compile(r"^\s*(from|import) precede\.commands\b|^\s*from precede import .*\bcommands\b", re.MULTILINE)
    paths = [path for room in ROOMS for path in of_room(room)]
    assert [short(path) for path in paths if commands.search(path.read_text())] == []
    assert "precede.commands." in (ROOT / "precede" / "command_line.py").read_text()  # it loads the one that is called


def test_public_python_does_not_import_the_command_line() -> None:
    """Whatever a program gets from precede works without typer, also what is imported while it runs."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in of_room("precede")
    }
    pending = [home for home in set(precede._HOMES.values()) if home in modules]
    reached: set[str] = set()
    assert pending
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        for node in ast.walk(ast.parse(modules[name].read_text())):
            if isinstance(node, ast.Import):
                named = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                named = [str(node.module), *(f"{node.module}.{one.name}" for one in node.names)]
            else:
                continue
            wrong = [one for one in named if re.match(r"typer\b|precede\.(command_\w+|commands)\b", one)]
            assert not wrong, f"{short(modules[name])} imports {wrong[0]}"
            pending += [one for one in named if one in modules]


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_imported_is_declared(room: str) -> None:
    distributions = packages_distributions()
    declared = {name_of(line) for line in [*PROJECT["project"]["dependencies"], *of_extras(*EXTRAS)]}
    for path in of_room(room):
        for name in set(imports(path)) - set(ROOMS) - sys.stdlib_module_names:
            homes = {home.replace("_", "-").lower() for home in distributions.get(name, [])}
            assert homes & declared, f"{short(path)} imports {name}, which pyproject.toml does not name"


def test_the_kernel_only_computes() -> None:
    for path in of_room("udfs"):
        allowed = KERNEL_MAY_IMPORT | MORE_FOR.get(path.name, set())
        assert not set(imports(path)) - allowed, f"{short(path)} imports {set(imports(path)) - allowed}"
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
            assert called not in KERNEL_MAY_NOT_CALL, (
                f"{short(path)} calls {called} in line {getattr(node, 'lineno', 0)}"
            )


def test_the_design_page_names_every_file_of_the_kernel() -> None:
    page = (ROOT / "docs" / "internals" / "design.md").read_text()
    assert [short(path) for path in of_room("udfs") if path.parent.name == "udfs" and path.name not in page] == [
        "udfs/__init__.py"
    ]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_exported_and_belongs_to_the_one_family(name: str) -> None:
    error = getattr(precede, name)
    assert name in precede.__all__
    assert issubclass(error, precede.PrecedeError)
    assert [other for other in ERRORS if other != name and issubclass(error, getattr(precede, other))] == []


def test_every_error_is_defined_once() -> None:
    defined: dict[str, list[str]] = {}
    for path in [path for room in ROOMS for path in of_room(room)]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, []).append(short(path))
    homes = {name: defined[name] for name in ("PrecedeError", *ERRORS)}
    assert homes == {name: ["udfs/errors.py"] for name in homes}


def test_every_kafka_client_gets_in_by_the_settings() -> None:
    homes = {"ingest/kafka/clients.py"}  # all others get theirs from here, including passwords
    homes.add("ingest/kafka/access.py")  # it refuses that name in the config file
    homes.add("precede/local/embedded_broker.py")  # it checks whether its own broker has started
    for path in [path for room in ROOMS for path in of_room(room) if short(path) not in homes]:
        assert "bootstrap.servers" not in path.read_text(), f"{short(path)} opens a client without the settings"


@pytest.mark.parametrize(
    ("home", "mark"),
    [
        ("ingest/kafka/reading.py", r"_PARTITION_EOF|get_watermark_offsets|[\"']enable\.partition\.eof[\"']:"),
        ("ingest/files.py", r"\bfcntl\b|\bfilelock\b|\bnew\.replace\("),
    ],
)
def test_what_is_easily_written_twice_exists_once(home: str, mark: str) -> None:
    paths = [path for room in ROOMS for path in of_room(room)]
    assert [short(path) for path in paths if re.search(mark, path.read_text())] == [home]


def test_what_an_order_is_is_asked_of_its_flags_and_not_of_its_name() -> None:
    names = "|".join(ORDERS)
    asked = re.compile(rf"""[=!]= "(?:{names})"|in \("(?:{names})",|isinstance\([^)]*(?:Lamport|Clock)Stamps""")
    inside = (ROOT / "udfs" / "orders", ROOT / "udfs" / "release")
    paths = [path for room in ROOMS for path in of_room(room) if path.parent not in inside]
    assert [short(path) for path in paths if asked.search(path.read_text())] == []


def test_nothing_compacts_a_table_by_delta_rs() -> None:
    """Newer releases of it commit a compaction although another one has replaced its files since: rows stand twice."""
    compacts = re.compile(r"\.optimize\b")
    paths = [path for path in SOURCES if not short(path).startswith("tests/")]
    assert [short(path) for path in paths if compacts.search(path.read_text())] == []


def test_every_file_of_an_order_is_registered() -> None:
    files = (ROOT / "udfs" / "orders").glob("*.py")
    assert {path.stem for path in files if re.search(r"^    paper = ", path.read_text(), re.MULTILINE)} == set(ORDERS)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_has_its_file_tests_story_page_and_row_in_the_tables(order: str) -> None:
    assert ORDERS[order].__module__ == f"precede.udfs.orders.{order}"
    docstring = ast.get_docstring(ast.parse((ROOT / "udfs" / "orders" / f"{order}.py").read_text())) or ""
    for part in ("Guarantee:", "[Ll]oss", "Stamp:", "\n    "):
        assert re.search(part, docstring), f"the docstring of {order} lacks {part!r} (the last is its worked example)"
    assert (ROOT / "tests" / "kernel" / f"test_{order}.py").exists()
    stories = (ROOT / "tests" / "scenarios").glob("*.txt")
    assert any(re.search(rf"\b{order}\b", story.read_text()) for story in stories), f"no scenario uses {order}"
    assert re.search(rf"^\| `{order}` \|", (ROOT / "README.md").read_text(), re.MULTILINE), (
        f"README has no row for {order}"
    )
    pages = ROOT / "docs" / "orders"
    assert re.search(rf"^\| \[`{order}`\]\({order}\.md\) \|", (pages / "README.md").read_text(), re.MULTILINE), (
        f"docs/orders/README.md has no row for {order}"
    )
    titles = re.findall(r"^## (.*)$", (pages / f"{order}.md").read_text(), re.MULTILINE)
    assert titles == PAGE_OF_AN_ORDER, f"docs/orders/{order}.md has other sections"


def test_the_settings_have_the_defaults_that_the_reference_and_the_help_name() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    table = page.partition("## The table")[2].partition("| `[limits]`")[0]
    told: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", table, re.MULTILINE):
        told |= zip_longest(re.findall(r"`(\w+)`", names), defaults.split(", "), fillvalue="none")
    run = typer.main.get_command(application(["run"])).commands["run"]  # type: ignore[attr-defined]
    for option in run.params:
        found = re.search(r"Default: PRECEDE_\w+, else (\S+)\.$", getattr(option, "help", None) or "")
        told |= {} if found is None else {f"--{option.name}": found[1]}
    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    for name, text in told.items():
        default = defaults[name.removeprefix("--")]
        if default not in (None, -1, 0) or text == "0":  # the table has words for these
            plain = str(default).lower().removesuffix(".0")
            assert text.strip("`").replace(",", "") == plain, f"the default of {name} is {plain}"
    assert defaults.keys() - told.keys() == {*TABLES, "once", "rebuild_delta"}, (
        "the page has all settings that are not flags alone"
    )


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_the_commands_that_pages_name_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = re.findall(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", page.read_text(), re.MULTILINE | re.DOTALL)
    for line in "\n".join(block or inline for block, inline in code).splitlines():
        for target in re.findall(r"(?:^|[;&|] *)make ([a-z-]+)", line):
            assert target in targets, f"there is no `make {target}`"
        for command, rest in re.findall(r"(?:^|[ /;&|])(?<!from )precede ([a-z][a-z-]*)\b([^#|;&]*)", line):
            assert command in COMMANDS, f"there is no `precede {command}`"
            unknown = set(re.findall(r"(?<![\w-])--[a-z-]+", rest)) - flags_of(command) - {"--help"}
            assert not unknown, f"`precede {command}` does not take {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_the_links_of_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{target} is not there"


def anchors_of(page: Path) -> set[str]:
    """What its headings are called in links."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_the_anchors_of_links_are_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text()):
        assert anchor in anchors_of(page.parent / target if target else page), f"{target}#{anchor} is not there"


OLD_WORDS = r"\b(whoever|whosoever|nobody|anew|thereof|thence|lest)\b"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=short)
def test_pages_use_words_of_today(page: Path) -> None:
    found = re.search(OLD_WORDS, page.read_text(), re.IGNORECASE)
    assert found is None, f"{short(page)} says {found[0]}"


OLD_TURNS = OLD_WORDS + r"|\b(so long(?! as\b)|of so many)\b"  # "So long a frame waits", for "How long a frame waits"


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a source, each with its line."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("room", [*ROOMS, "bench", "examples"])
def test_docstrings_and_comments_use_words_of_today(room: str) -> None:
    for path in of_room(room):
        for line, text in prose(path):
            found = re.search(OLD_TURNS, text, re.IGNORECASE)
            assert found is None, f"{short(path)}:{line} says {found[0]}"
        if room in ("ingest", "streaming", "precede"):  # and what they show to people
            shown = re.search(OLD_WORDS, path.read_text(), re.IGNORECASE)
            assert shown is None, f"{short(path)} says {shown[0]}"


def test_every_page_of_the_site_is_in_its_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    trees = re.findall(r"^```{toctree}\n(.*?)^```$", index, re.MULTILINE | re.DOTALL)
    entries = re.findall(r"^([\w/*-]+)$", "\n".join(trees), re.MULTILINE)
    listed = {found for entry in entries for found in (ROOT / "docs").glob(f"{entry}.md")}
    assert listed == {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {ROOT / "docs" / "index.md"}


def test_every_promise_rests_on_something_and_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "concepts" / "guarantees.md").read_text()
    promises = re.split(r"^### ", page.partition("\n## Not promised")[0], flags=re.MULTILINE)[1:]
    assert promises
    for promise in promises:
        sentence, _, body = promise.partition("\n")
        assert sentence.endswith("."), f"{sentence!r} is not a sentence"
        assert "- **Rests on** " in body, f"{sentence!r} does not say what it rests on"
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", body.partition("- **Tests**")[2])
        assert named, f"{sentence!r} names no test"
        for path, test in named:
            assert f"\ndef {test}(" in (ROOT / path).read_text(), f"{path} has no {test}"


def test_what_the_page_of_the_documents_names_is_there() -> None:
    page = (ROOT / "docs" / "internals" / "documents.md").read_text()
    for path in re.findall(r"`((?:udfs|ingest|streaming|precede|examples|tests)/[\w/.]+)", page):
        assert (ROOT / path).exists(), f"documents.md names {path}, which is not there"
    for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page):
        assert f"\ndef {test}(" in (ROOT / path).read_text(), f"{path} has no {test}"
    for path, name in re.findall(r"`(\w+/[\w/]+\.py)` \(`(\w+)`\)", page):
        assert f"\nclass {name}" in (ROOT / path).read_text(), f"{path} has no {name}"


def test_what_runs_in_ci_is_what_the_readme_says() -> None:
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert re.search(rf"^{command}\b", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_what_runs_elsewhere_and_before_a_commit_is_what_runs_here() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"- run: (.*)", workflow) == ["make setup", "make check", ".ci/run"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text()):
        command = hook.replace(".venv/bin/", "$(BIN)/").removesuffix(" --force-exclude")
        target = re.fullmatch(r"make ([a-z]+)", command)
        assert re.search(rf"^{target[1]}:", makefile, re.MULTILINE) if target else f"@{command} " in makefile, hook


def test_the_readme_fits_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_the_version_is_the_same_everywhere() -> None:
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert PROJECT["project"]["version"] == __version__ == newest[1]


def test_spark_and_its_jars_are_of_one_version() -> None:
    revision = re.search(
        r'name="spark-sql-kafka[^"]*" rev="([^"]+)"', (ROOT / "streaming" / "spark" / "ivy.xml").read_text()
    )
    assert revision is not None
    assert f"pyspark=={revision[1]}" in PROJECT["project"]["optional-dependencies"]["spark"]


def test_every_dependency_is_pinned_to_one_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w-]+==[\w.]+", line)] == []
    pinned = {name_of(line) for line in lines}
    named = [*PROJECT["project"]["dependencies"], *of_extras(*PROJECT["project"]["optional-dependencies"])]
    assert {name_of(line) for line in named} - pinned - {"precede"} == set()


def test_the_extras_bring_what_the_sentences_about_them_say() -> None:
    assert set(EXTRAS) | {"all", "dev", "docs"} == set(PROJECT["project"]["optional-dependencies"])
    assert PROJECT["project"]["optional-dependencies"]["all"] == [f"precede[{','.join(EXTRAS)}]"]
    distributions = packages_distributions()
    for extra, modules in EXTRAS.items():
        brought = {name_of(line) for line in of_extras(extra)}
        homes = {home.replace("_", "-").lower() for module in modules for home in distributions[module]}
        assert brought <= homes, f"precede[{extra}] brings {brought - homes}, which no sentence asks for"
        assert all(brought & {home.replace("_", "-").lower() for home in distributions[module]} for module in modules)


def test_no_file_names_a_machine_or_a_registry() -> None:
    # Written so that this file does not contain them itself.
    paths = r"/(wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+)/|/tmp/tea[m]|\.pyen[v]"
    hosts = r"repo1?\.mave[n]|repo\.mave[n]|pypi\.or[g]|pythonhoste[d]|npmj[s]\.org|dock[e]r\.io|gh[c]r\.io|qua[y]\.io"
    for path in TRACKED:
        text = path.read_text(errors="replace")
        found = re.search(f"{paths}|{hosts}", text)
        assert found is None, f"{short(path)} names {found[0]}"


def test_nothing_is_left_for_later() -> None:
    for path in SOURCES:
        found = re.search(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b", path.read_text())
        assert found is None, f"{short(path)} says {found[0]}"


def test_files_have_one_subject_and_so_stay_short() -> None:
    long = {short(path): lines for path in SOURCES if (lines := len(path.read_text().splitlines())) > LINES_MAX}
    assert long == {}


def test_tests_are_named_by_sentences_and_stand_in_a_level() -> None:
    levels = {marker.partition(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    for path in of_room("tests"):
        if not path.name.startswith("test_"):
            continue
        folder = short(path).split("/")[1]
        assert folder in levels or path.parent == ROOT / "tests", f"{folder} is not one of the levels in pyproject.toml"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert len(node.name.split("_")) > 3, f"{short(path)}: {node.name} is not a sentence"


@pytest.mark.parametrize("name", precede.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(precede, name) is not None
