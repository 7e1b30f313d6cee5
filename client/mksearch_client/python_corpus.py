"""The demo's corpus: what Python says about itself, found on every machine that runs the demo.

The language topics of ``help()`` and the docstrings of the standard library.  Its modules are
parsed, never imported: importing all of them would run code, open windows and take minutes.
"""

from __future__ import annotations

import ast
import inspect
import os
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Final

from mksearch.errors import InputError
from mksearch_client.reading import Document

__all__ = ["DEMO_QUERIES", "python_documents"]

#: Queries for this corpus: a task; two rare words; a rule of the language, in a sentence's
#: words; words that many documents share.
DEMO_QUERIES: Final[tuple[str, ...]] = (
    "decode a JSON document",
    "leap year",
    "exception raised in a finally clause",
    "timeout of a socket connection",
)

#: A shorter docstring says little more than the name does.
_DOCSTRING_CHARS_MIN: Final = 40
_TITLE_CHARS: Final = 120
#: Tests, what is installed beside the library, and programs that are nobody's modules.
_LEFT_OUT: Final = frozenset(
    {"test", "tests", "site-packages", "dist-packages", "__pycache__"}
    | {"idlelib", "lib2to3", "turtledemo"}
)

_Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_BLOCKS: Final = (ast.stmt, ast.excepthandler, ast.match_case)


def _topics() -> Iterator[tuple[str, str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # a Python cut down for an appliance
        return
    for name in sorted(topics):
        text = topics[name].strip()
        yield f"topics.{name}", text.partition("\n")[0].replace('"', ""), text


def _modules(root: str) -> Iterator[tuple[str, str]]:
    """Yield dotted name and file of each module below a folder, sorted."""
    for folder, below, files in os.walk(root):
        below[:] = sorted(name for name in below if name not in _LEFT_OUT and name.isidentifier())
        package = [part for part in os.path.relpath(folder, root).split(os.sep) if part != "."]
        for file in sorted(files):
            name, suffix = os.path.splitext(file)
            if suffix == ".py" and name.isidentifier():
                parts = package if name == "__init__" else [*package, name]
                if parts:
                    yield ".".join(parts), os.path.join(folder, file)


def _parse(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _definitions(tree: ast.Module, module: str) -> Iterator[tuple[str, _Defined]]:
    """Yield dotted names of classes, functions and methods, also those under a condition."""
    # No recursion: a long chain of elif is nested as deeply as it is long.
    stack: list[tuple[ast.AST, str]] = [(tree, module)]
    while stack:
        node, prefix = stack.pop()
        if isinstance(node, _Defined):
            prefix = f"{prefix}.{node.name}"
            yield prefix, node
            if not isinstance(node, ast.ClassDef):
                continue
        below = [child for child in ast.iter_child_nodes(node) if isinstance(child, _BLOCKS)]
        stack.extend((child, prefix) for child in reversed(below))


def _title_of(name: str, node: _Defined) -> str:
    title = name if isinstance(node, ast.ClassDef) else f"{name}({ast.unparse(node.args)})"
    return title if len(title) <= _TITLE_CHARS else title[: _TITLE_CHARS - 1] + "…"


def _docstrings(root: str) -> Iterator[tuple[str, str, str]]:
    for module, path in _modules(root):
        tree = _parse(path)
        if tree is None:
            continue
        yield module, module, ast.get_docstring(tree, clean=False) or ""
        for name, node in _definitions(tree, module):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield name, _title_of(name, node), docstring


def python_documents() -> Iterator[Document]:
    """Yield what Python says about itself: some thousands of short English documents.

    First the topics of ``help()`` (ids ``topics.NAME``), then every docstring of at least 40
    characters of the standard library's modules, classes, functions and methods, sorted by
    module and then in the order of the source.  Ids are dotted names such as
    ``json.decoder.JSONDecoder.decode``; a name defined more than once (a property's setter, say)
    gets ``#2``, ``#3`` and so on.  Titles are the name and, of functions, the parameters.

    Nothing is executed but ``pydoc_data.topics``, a table of strings.  Where the standard library
    has no sources (a zip, an appliance), the topics are all there is.

    Yields:
        Documents with ids that are unique and the same at every call on one Python.
    """
    for topic in _topics():
        yield Document(*topic)
    seen: Counter[str] = Counter()
    for name, title, docstring in _docstrings(sysconfig.get_path("stdlib")):
        text = inspect.cleandoc(docstring)
        if len(text) < _DOCSTRING_CHARS_MIN:
            continue
        seen[name] += 1
        own_id = name if seen[name] == 1 else f"{name}#{seen[name]}"
        try:
            yield Document(own_id, title, text)
        except InputError:  # a docstring about lone surrogates that holds one
            continue
