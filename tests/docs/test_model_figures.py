"""The figures of models are those of the package that they come from."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_model_figures.py"


def test_figures_of_models_are_those_of_the_package() -> None:
    generator = runpy.run_path(str(SCRIPT))
    assert generator["TARGET"].read_text() == generator["rendered"](), "run scripts/generate_model_figures.py"
