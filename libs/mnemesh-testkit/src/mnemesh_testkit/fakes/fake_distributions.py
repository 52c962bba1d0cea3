"""Installed packages: a module, and metadata with its entry points."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def install(site: Path, module: str, source: str, entry_points: Mapping[str, Sequence[str]]) -> None:
    """Writes a module and its metadata to a directory, which makes it installed once the directory is on `sys.path`.

    Args:
        site: the directory; made where it is missing.
        module: its name; the distribution's has hyphens for underscores.
        source: its text.
        entry_points: group → names in the module; each is installed under its name in lower case.
    """
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name.lower()} = {module}:{name}\n" for name in names)
        for group, names in entry_points.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    (info / "RECORD").write_text("")
