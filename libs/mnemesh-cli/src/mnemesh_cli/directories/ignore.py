"""The files of a directory that are not uploaded: hidden files, temporary files of programs, and ignore files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from pathspec import GitIgnoreSpec

IGNORE_FILES: Final = (".gitignore", ".mnemeshignore")
"""In every directory; the second overrides the first."""

_ALWAYS: Final = (
    # Version control, whose files are never content.
    *(".git/", ".hg/", ".svn/", ".jj/"),
    # Temporary files of editors and office programs: Vim, Emacs, JetBrains, GNOME, LibreOffice, Microsoft Office.
    *("*.sw[a-p]", "4913", "*~", r"\#*#", ".#*", "___jb_tmp___", "___jb_old___", ".goutputstream-*"),
    *(".~lock.*#", "~$*", "*.tmp", "*.temp"),
    # Incomplete downloads and copies.
    *("*.part", "*.partial", "*.crdownload", "*.download", ".*.??????"),
    # What systems and programs leave in directories.
    *(".DS_Store", "Thumbs.db", "desktop.ini", "__pycache__/", "node_modules/"),
)
_HIDDEN: Final = ".*"
_LARGEST_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Rules:
    """Rules for the files below a directory. `base` is its relative path with a "/" at the end, or empty."""

    base: str
    spec: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """Returns whether a path is ignored; None if no rule is about it."""
        return self.spec.check_file(path[len(self.base) :]).include


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that apply in one directory, with the semantics of .gitignore.

    Of all matching rules the last one decides, and rules of a directory come after those of its parents. Files below an
    ignored directory are not looked at, so no rule can include them again.
    """

    rules: tuple[_Rules, ...]

    @classmethod
    def of_root(cls, patterns: Sequence[str] = (), *, hidden: bool = False) -> IgnoreRules:
        """Returns the built-in rules and those of the caller, which precede the ignore files.

        Args:
            patterns: further rules, in the syntax of .gitignore.
            hidden: whether files and directories whose name begins with "." are included.

        Raises:
            InvalidArgument: a pattern is invalid.
        """
        for pattern in patterns:
            if not _is_valid(pattern):
                raise InvalidArgument(
                    f"{pattern!r} is no rule. Use the syntax of .gitignore, such as '*.log'.", field="ignore"
                )
        built_in = [*_ALWAYS, *(() if hidden else (_HIDDEN,))]
        return cls((_Rules("", _spec([*built_in, *patterns])),))

    def within(self, directory: Path, base: str) -> IgnoreRules:
        """Returns the rules with those of the ignore files in a directory, whose relative path is `base`.

        Invalid rules are left out, as git does.
        """
        own = tuple(
            _Rules(base, _spec(filter(_is_valid, lines)))
            for name in IGNORE_FILES
            if (lines := _lines(directory / name))
        )
        return IgnoreRules((*self.rules, *own)) if own else self

    def ignores(self, path: str) -> bool:
        """Returns whether a relative path is ignored. The path of a directory ends with "/"."""
        for rules in reversed(self.rules):
            verdict = rules.verdict(path)
            if verdict is not None:
                return verdict
        return False


def _spec(rules: Iterable[str]) -> GitIgnoreSpec:
    # Without the argument, the result would depend on which engines of expressions are installed.
    return GitIgnoreSpec.from_lines(rules, backend="simple")


def _is_valid(rule: str) -> bool:
    try:
        _spec([rule])
    except ValueError:
        return False
    return True


def _lines(path: Path) -> list[str]:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
