"""Write tests/api/snapshot.txt: every public name with its signature, read from the source.

``python3 dev.py api`` runs this. A change of the file in a commit is a change of what users see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "tests" / "api" / "snapshot.txt"
MODULES = (
    "api", "artifacts", "losses", "optim", "schedulers", "errors", "extend", "onnxblock",
    "onnxblock.blocks", "onnxblock.loss", "onnxblock.optim", "training", "torch", "torch.optim",
    "torch.amp", "sklearn", "compat", "distributed", "flower", "",
)  # fmt: skip
"""Public modules, the package itself last: most of its names are another module's."""


def render() -> str:
    """The whole snapshot."""
    package = griffe.load("onnxtrain", search_paths=[ROOT / "src"], resolve_aliases=True)
    members = {m: sorted(public(module_of(package, m)), key=lambda pair: pair[0]) for m in MODULES}
    listed = {v.canonical_path for pairs in members.values() for _, v in pairs if v is not None}
    written: dict[str, str] = {}
    parts = [section(module, pairs, listed, written) for module, pairs in members.items()]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def section(
    module: str, members: list[tuple[str, Any]], listed: set[str], written: dict[str, str]
) -> list[str]:
    """One module: its names in order, each written in full where it comes up first."""
    title = f"onnxtrain.{module}".rstrip(".")
    lines = [f"# {title}"]
    for name, member in members:
        if member is None:
            lines.append(f"{name} (of another package)")
        elif member.kind is griffe.Kind.MODULE:
            lines.append(f"module {name}")
        elif member.canonical_path in written:
            lines.append(f"{name} = {written[member.canonical_path]}.{name}")
        else:
            written[member.canonical_path] = title
            lines.extend(described(name, member, listed))
    return lines


def module_of(package: Any, module: str) -> Any:
    """A module by its dotted name; names that are re-exported modules are followed."""
    for part in module.split(".") if module else []:
        package = package.members[part]
        package = package.final_target if package.is_alias else package
    return package


def public(module: Any) -> Iterator[tuple[str, Any]]:
    """What a module offers: re-exports (``x as x``) and its own definitions."""
    exported = re_exports(module.filepath)
    for name, member in module.members.items():
        is_own = not member.is_alias and member.kind is not griffe.Kind.MODULE
        if not name.startswith("_") and (is_own or name in exported):
            yield name, resolved(member)


def re_exports(source: Path) -> set[str]:
    """Names that are imported as themselves, which is how typed packages mark public ones."""
    return {
        alias.name
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def resolved(member: Any) -> Any:
    """What an alias stands for; None for a name of another package."""
    if not member.is_alias:
        return member
    try:
        return member.final_target
    except (griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None


def described(name: str, member: Any, listed: set[str]) -> Iterator[str]:
    """Lines for one name."""
    if member.kind is griffe.Kind.CLASS:
        yield f"class {name}({parameters(member.parameters)})"
        hidden = [base for base in member.mro() if base.canonical_path not in listed]
        names = {base.name for base in hidden}
        bases = [str(base) for base in member.bases if str(base) not in names]
        if len(bases) < len(member.bases):  # behind a hidden base there may be one that is public
            bases += [b.name for b in member.mro() if b.canonical_path in listed][:1]
        if bases:
            yield f"    bases: {', '.join(bases)}"
        for inner, value in sorted(class_members(member, hidden).items()):
            yield f"    {one_line(inner, value)}"
    else:
        yield one_line(name, member)


def class_members(cls: Any, hidden: list[Any]) -> dict[str, Any]:
    """Public members: its own, and those that it has from bases that are not public."""
    members: dict[str, Any] = {}
    for owner in (cls, *hidden):
        for name, member in owner.members.items():
            target = None if name.startswith("_") else resolved(member)
            if target is not None:
                members.setdefault(name, target)
    return members


def one_line(name: str, member: Any) -> str:
    """A function with its signature, anything else with its type."""
    if member.kind is griffe.Kind.FUNCTION:
        returns = f" -> {member.returns}" if member.returns is not None else ""
        kinds = [k for k in ("staticmethod", "classmethod") if k in member.labels]
        return f"{' '.join([*kinds, 'def'])} {name}({parameters(member.parameters)}){returns}"
    if member.kind is griffe.Kind.CLASS:
        return f"class {name}"
    annotation = f": {member.annotation}" if member.annotation is not None else ""
    settable = " (read-only)" if {"property"} == member.labels & {"property", "writable"} else ""
    return f"{name}{annotation}{settable}"


def parameters(given: Any) -> str:
    """A parameter list as it is written in Python, without self."""
    kinds = griffe.ParameterKind
    parts: list[str] = []
    star = False
    for parameter in given:
        if parameter.name in {"self", "cls"} and not parts:
            continue
        if parameter.kind is kinds.keyword_only and not star:
            parts.append("*")
            star = True
        star = star or parameter.kind is kinds.var_positional
        prefix = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
        text = f"{prefix}{parameter.name}"
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not prefix:
            text += f" = {parameter.default}"
        parts.append(text)
    return ", ".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
