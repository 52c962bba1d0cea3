"""The prompts of summary models by mode: `<mode>.txt`. {WORDS} is replaced by the maximum length of the summary.

If a model is asked in its own context, {ANSWER} is replaced by the way to answer.
"""

from functools import cache
from importlib import resources


@cache
def summary_prompt(mode: str) -> str:
    return (resources.files(__package__) / f"{mode}.txt").read_text(encoding="utf-8").removesuffix("\n")
