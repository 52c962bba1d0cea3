"""Resolves and installs the packages of tools in TypeScript with npm. Their scripts are not executed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mnemesh_sandbox import OUTPUT_DIRECTORY, Language, Task
from mnemesh_sandbox.inside.node import EXPORT
from mnemesh_sandbox.node import NodeProgram

from mnemesh_tools.model.support import INSTALL_NODE
from mnemesh_tools.packages import inside
from mnemesh_tools.packages.builder import Builds, PackagesUnavailable, certificate_file

_PROGRAM: Final = "npm"
_LOCK: Final = "package-lock.json"
_MANIFEST: Final = "package.json"
_COMMON: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
_SOURCE: Final = f"""
import {{ spawnSync }} from 'node:child_process';
import {{ mkdirSync, readFileSync, writeFileSync }} from 'node:fs';

function run_npm(npm, options, environment, files, result, output) {{
  process.umask(0o022); // other uids read what it installs
  const directory = `${{output}}/{inside.SITE}`;
  mkdirSync(directory);
  for (const [name, text] of Object.entries(files)) writeFileSync(`${{directory}}/${{name}}`, text);
  const proxies = Object.entries(process.env).filter(([name]) => name.toLowerCase().endsWith('_proxy'));
  const env = {{ ...environment, ...Object.fromEntries(proxies), HOME: output, npm_config_cache: `${{output}}/cache` }};
  const done = spawnSync(process.execPath, [`${{npm}}/bin/npm-cli.js`, ...options], {{
    cwd: directory,
    env,
    encoding: 'utf8',
    maxBuffer: 16000000,
  }});
  const text = done.status === 0 && result ? readFileSync(`${{directory}}/${{result}}`, 'utf8') : '';
  return [done.status ?? -1, text, `${{done.stderr ?? ''}}${{done.error?.message ?? ''}}`.slice(-4000)];
}}
export {{ run_npm as {EXPORT} }};
"""
_PARAMETERS: Final = ("npm", "options", "environment", "files", "result", "output")


class NpmInstaller:
    """Packages of an npm registry."""

    def __init__(self, builds: Builds, registry: str, node: NodeProgram | None) -> None:
        """Stores the settings.

        Args:
            builds: Runs npm.
            registry: The URL of the registry.
            node: Node, with which npm was installed; None if this server has none.
        """
        self._builds = builds
        self._registry = registry
        self._npm = None if node is None else node.npm

    async def resolve(self, lines: Sequence[str], output: Path) -> str:
        """Returns the lock of requirements: the text of package-lock.json, with the hash of each package.

        Args:
            lines: The requirements, such as "zod@^3".
            output: An empty directory for the files of npm.

        Raises:
            PackagesUnavailable: They cannot be resolved, or the registry cannot be reached.
            SandboxUnavailable: The host cannot confine a build.
        """
        dependencies = {name: version for name, _, version in (line.rpartition("@") for line in lines)}
        files = {_MANIFEST: json.dumps({"name": "tool", "version": "0.0.0", "dependencies": dependencies})}
        text = await self._run(("install", "--package-lock-only", *_COMMON), files, _LOCK, output)
        _require_hashes(text)
        return text

    async def install(self, lock: str, output: Path) -> Path:
        """Installs the packages of a lock, and returns their directory within `output`.

        Raises:
            PackagesUnavailable: A package is missing or has another hash, or the registry cannot be reached.
            SandboxUnavailable: The host cannot confine a build.
        """
        root = _packages(lock).get("", {})
        files = {_MANIFEST: json.dumps({**root, "name": "tool"}), _LOCK: lock}
        await self._run(("ci", "--omit=dev", *_COMMON), files, "", output)
        site = output / inside.SITE
        if site.is_symlink() or not (site / "node_modules").is_dir():
            raise PackagesUnavailable("the installation left no directory of packages")
        return site

    async def _run(self, options: Sequence[str], files: Mapping[str, str], result: str, output: Path) -> str:
        if self._npm is None:
            raise PackagesUnavailable(f"this server has no npm. {INSTALL_NODE}")
        certificates = certificate_file()
        values = {
            "npm": self._npm,
            "options": [*options, f"--registry={self._registry}", "--fetch-retries=0"],
            "environment": {} if certificates is None else {"NODE_EXTRA_CA_CERTS": certificates},
            "files": dict(files),
            "result": result,
            "output": OUTPUT_DIRECTORY,
        }
        task = Task(_SOURCE, "run_npm", values, language=Language.JAVASCRIPT, parameters=_PARAMETERS)
        return await self._builds.run(_PROGRAM, task, self._registry, output, (self._npm,))


def _packages(lock: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        found = json.loads(lock)["packages"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackagesUnavailable("the lock of npm cannot be read") from error
    if not isinstance(found, dict) or not all(isinstance(item, dict) for item in found.values()):
        raise PackagesUnavailable("the lock of npm cannot be read")
    return found


def _require_hashes(lock: str) -> None:
    """Checks that every package comes from a registry, with a hash of its content."""
    for path, item in _packages(lock).items():
        if path and not item.get("inBundle") and not isinstance(item.get("integrity"), str):
            raise PackagesUnavailable(f"the package {path.rpartition('node_modules/')[2]} is not one of a registry")
