"""How the documentation site reads docstrings: a griffe extension, named in mkdocs.yml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

SHADOWED = "__function"
"""Behind the name of a function that a module of its package has too (``lora.add``)."""


class Examples(griffe.Extension):
    """Show an ``Example:`` section as code with its output, as griffe does for ``Examples:``."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rename the section."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.M)

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Keep a function that the module beside it, of the same name, is about to replace."""
        package = func.parent
        if package is None or not package.is_module or not isinstance(package.filepath, Path):
            return
        if package.filepath.with_name(f"{func.name}.py").is_file() and package.is_init_module:
            package.set_member(f"{func.name}{SHADOWED}", func)
