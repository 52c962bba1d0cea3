"""What a summariser is told, by mode: `<mode>.txt`, with {WORDS} where the longest summary is named.

Where a model is asked in its own context, {ANSWER} stands for how it is to answer.
"""

from functools import cache
from importlib import resources


@cache
def summary_prompt(mode: str) -> str:
    """The prompt of a mode."""
    return (resources.files(__package__) / f"{mode}.txt").read_text(encoding="utf-8").removesuffix("\n")
