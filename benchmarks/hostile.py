"""Files of options that try to run something, and what they may do at most."""

import encodings.utf_8_sig  # noqa: F401
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from torchcaps.spec import Spec
from torchcaps_lab import kinds
from torchcaps_lab.options.reading import read_options
from torchcaps_lab.training.command_line import training_options

# What is imported when it is first needed, such as the kinds here and the codec of byte
# order marks above, is nothing that a file names.
kinds.load()

TRIED: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "faults.yaml").read_text(encoding="utf-8")
)
"""What is tried: options of a training, values that do not belong there, and the parts
of random YAML.
"""

_watch: dict[str, bool] = {"spawning": False, "imports": False}
_seen: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    imported = (
        event == "import" and _watch["imports"] and arguments[0] not in sys.modules
    )
    if imported or (_watch["spawning"] and event in TRIED["spawning"]):
        _seen.append(f"{event} {arguments[0]!r}")


sys.addaudithook(_audit)  # which cannot be taken away again


@contextmanager
def watched(imports: bool = True) -> Iterator[list[str]]:
    """Lists what is imported for the first time and what is started inside the
    block.
    """
    _seen.clear()
    _watch.update(spawning=True, imports=imports)
    try:
        yield _seen
    finally:
        _watch.update(spawning=False, imports=False)


def harmless(text: str, path: Path) -> bool:
    """Whether a file with this text imports and starts nothing, and what it describes
    is in a table.
    """
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with watched() as seen:
        try:
            options = training_options(read_options(path))
        except ValueError:
            return not seen
    specs: list[Spec] = []
    for group in options.groups:
        specs += _specs_in(dict(group.arguments))
    return not seen and all(map(_in_table, specs))


def _in_table(spec: Spec) -> bool:
    """Whether the class of a spec is in its registry, if it has one."""
    registry = spec.registry
    if registry is None:
        return True
    classes = (*registry.values(), *registry.classes())
    return issubclass(spec.cls, registry.base) and spec.cls in classes


def _specs_in(value: Any) -> Iterator[Spec]:
    """All specs inside a value."""
    if isinstance(value, Spec):
        yield value
        value = value.arguments
    entries: Iterable[Any] = ()
    if isinstance(value, dict):
        entries = value.values()
    elif isinstance(value, list | tuple):
        entries = value
    for entry in entries:
        yield from _specs_in(entry)


def texts(mark: Path) -> st.SearchStrategy[str]:
    """YAML texts that name things to run where options take a class; each would write
    ``mark``.

    Biased to what readers of YAML disagree about: tabs, dates that are none, tags,
    anchors, byte order marks, quotes in quotes, and flow mappings as text.
    """
    gap, name, key, place, start = (
        st.sampled_from(TRIED[part])
        for part in ("gaps", "names", "keys", "places", "starts")
    )
    tag = st.sampled_from(TRIED["tags"]).map(lambda tag: f"{tag} ")
    command = st.sampled_from(
        [
            f"{{command: touch {mark}}}",
            f"[touch {mark}]",
            f"{{args: [touch, {mark}]}}",
            "{lr: 0.1}",
            "3",
        ]
    )
    pair = st.tuples(key, st.just(":"), gap, tag, name | command).map("".join)
    flow = st.lists(pair, min_size=1, max_size=4).map(
        lambda pairs: f"{{{', '.join(pairs)}}}"
    )
    plain = st.tuples(gap, flow, gap).map("".join) | name
    quoted = st.recursive(plain, _quoted, max_leaves=4)
    value = quoted | st.text(max_size=12)
    line = st.tuples(place, st.just(":"), gap, tag, value, st.just("\n")).map("".join)
    lines = st.lists(line, min_size=1, max_size=2).map("".join)
    return st.tuples(start, lines).map("".join)


def _quoted(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts in quotes, as a block, behind a byte order mark, and several as a list."""
    lists = st.lists(inner, max_size=3)
    return (
        inner.map(repr)
        | inner.map(lambda text: '"' + text.replace('"', '\\"') + '"')
        | inner.map(lambda text: f"|\n  {text}")
        | inner.map(lambda text: f"\ufeff{text}")
        | lists.map(lambda several: f"[{', '.join(several)}]")
    )
