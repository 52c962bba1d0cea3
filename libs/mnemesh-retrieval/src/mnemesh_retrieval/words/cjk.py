"""Kana and Han characters. Their scripts have no spaces, so each character is indexed as a word."""

from __future__ import annotations

import re

_CHARACTER = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
CJK_CHARACTER = re.compile(f"({_CHARACTER})")
CJK_RUN = re.compile(f"{_CHARACTER}+")
"""Matches a run of such characters; CJK_CHARACTER matches one."""
