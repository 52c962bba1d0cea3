"""Text files: encodings, line numbers, long lines, and bytes that are no text."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_files.parsers.document import (
    MAX_VERBATIM_LINE,
    Cause,
    DocumentKind,
    DocumentUnreadable,
    ParsedDocument,
    ParseLimits,
    divide,
)
from mnemesh_files.parsers.formats import PLAIN_TEXT, NotText, decode, parse_text_file, type_of_name

_RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация южных губерний."
_GERMAN = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Füße, Größe, Maß.\n"
_JAPANESE = (
    "日本語の文章は漢字とかなで書かれています。東京都の人口は約千四百万人です。明日の会議は午後三時から始まります。\n"
)


def _parsed(
    tmp_path: Path, content: bytes, name: str = "notes.txt", limits: ParseLimits | None = None
) -> ParsedDocument:
    path = tmp_path / "content"
    path.write_bytes(content)
    return parse_text_file(path, type_of_name(name) or PLAIN_TEXT, limits or ParseLimits())


@pytest.mark.parametrize(
    ("text", "encoding", "found"),
    [
        (_GERMAN, "utf-8", "utf-8"),
        (_GERMAN, "utf-8-sig", "utf-8"),
        (_GERMAN, "utf-16", "utf-16-le"),
        (_GERMAN, "utf-16-le", "utf-16-le"),
        (_GERMAN, "utf-16-be", "utf-16-be"),
        (_GERMAN, "utf-32", "utf-32-le"),
        (_GERMAN * 3, "latin-1", "cp1252"),
        (_RUSSIAN, "cp1251", "cp1251"),
        (_RUSSIAN, "koi8_r", "koi8-u"),
        (_JAPANESE, "shift_jis", "cp932"),
        (_JAPANESE, "euc_jp", "euc_jp"),
        (_JAPANESE, "utf-16", "utf-16-le"),
    ],
)
def test_text_is_read_in_its_encoding(text: str, encoding: str, found: str) -> None:
    decoded = decode(text.encode(encoding))

    assert (decoded.text, decoded.encoding) == (text, found)
    assert bool(decoded.warnings) == (not found.startswith("utf"))


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("São Paulo", "cp1252"),
        ("nome;cidade\nJoão;São Paulo\nMaria;Brasília\n", "cp1252"),
        ("Café crème\n", "latin-1"),
        ("Où êtes-vous allés cet été ? Ça coûte 5 €, naïve Noël.", "cp1252"),
        ("Señor Muñoz", "latin-1"),
        ("La città è bella, però andrò là lunedì.", "latin-1"),
        ("Rødgrød med fløde. Åse går på gaden, og æblet er grønt.", "latin-1"),
        ("Räksmörgås. Åke är på väg till Göteborg.", "latin-1"),
        ("Hyvää päivää! Minä olen työssä.", "latin-1"),
        ("He said “it’s fine” – and left.", "cp1252"),
        ("Zażółć gęślą jaźń. Dzień dobry, proszę państwa!", "cp1250"),
        ("Zażółć gęślą jaźń. Dzień dobry, proszę państwa!", "iso8859_2"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "cp1250"),
        ("İstanbul'da yağmur yağıyor", "cp1254"),
        ("Αθήνα", "cp1253"),
        ("Привет", "cp1251"),
        ("Съешь же ещё этих мягких французских булок", "koi8_r"),
        ("Съешь же ещё этих мягких французских булок", "cp866"),
        ("שלום עולם, מה שלומך היום?", "cp1255"),
        ("สวัสดีครับ วันนี้อากาศดีมาก", "cp874"),
        ("안녕하세요, 오늘 날씨가 정말 좋네요.", "cp949"),
        ("今天天氣很好,我們去公園吧。", "big5"),
    ],
)
def test_a_line_of_a_language_is_read_in_its_usual_encoding(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)).text == text


def test_broken_utf_8_is_read_with_a_warning(tmp_path: Path) -> None:
    parsed = _parsed(tmp_path, "über\n".encode() * 10 + b"kaputt \xff\xfe hier\n")

    assert parsed.lines[0] == "über"
    assert parsed.lines[10] == "kaputt \ufffd\ufffd hier"
    assert parsed.warnings == ("The file contains bytes that are no characters in utf-8. 2 were replaced.",)


def test_a_word_of_latin_1_is_read(tmp_path: Path) -> None:
    assert _parsed(tmp_path, "Das Café ist über die Straße erreichbar.".encode("latin-1")).text == (
        "Das Café ist über die Straße erreichbar."
    )


@pytest.mark.parametrize(
    "content", [bytes(range(256)) * 8, b"\x00\x01\x02\x03" * 100, b"MZ\x90\x00\x03\x00\x00\x00\x04" * 50]
)
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DocumentUnreadable, match="neither text nor a document") as refused:
        _parsed(tmp_path, content)
    assert refused.value.cause is Cause.UNSUPPORTED


@given(st.binary(max_size=300))
def test_any_bytes_are_text_or_refused(content: bytes) -> None:
    with suppress(NotText):
        decode(content)


def test_code_is_kept_with_its_line_numbers(tmp_path: Path) -> None:
    source = "def f():\r\n\tif True:\r\n\r\n        return 1  \r\n\x0c\r\nx = '\u2028'\r\n"
    parsed = _parsed(tmp_path, source.encode(), "a.py")

    assert parsed.lines == ("def f():", "\tif True:", "", "        return 1  ", " ", "x = ' '")
    assert (parsed.kind, parsed.language, parsed.media_type) == (DocumentKind.CODE, "python", "text/x-python")


@pytest.mark.parametrize(
    ("content", "lines"), [("", 0), ("\n", 0), ("a", 1), ("a\n", 1), ("a\n\n", 2), ("a\rb", 2), ("a\r\nb\r\n", 2)]
)
def test_lines_are_counted_as_editors_do(tmp_path: Path, content: str, lines: int) -> None:
    parsed = _parsed(tmp_path, content.encode())

    assert parsed.total_lines == lines == len(parsed.lines)


def test_nul_characters_and_hidden_characters_are_reported(tmp_path: Path) -> None:
    flag = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
    text = f"a\0b\n\u202eevil\u202c \U000e0041\nשלום \u200b{flag}\n" + "plain text\n" * 10
    parsed = _parsed(tmp_path, text.encode())

    assert parsed.lines[:3] == ("a\ufffdb", "\u202eevil\u202c \U000e0041", f"שלום \u200b{flag}")
    assert parsed.warnings == (
        "1 NUL characters were replaced.",
        "The text contains 3 invisible characters that reverse or hide text. They were kept.",
    )


def test_a_long_line_is_divided_at_sentences(tmp_path: Path) -> None:
    sentence = "This is a sentence of some length. "
    parsed = _parsed(tmp_path, f"first\n{sentence * 300}\nlast".encode())

    assert max(map(len, parsed.lines)) <= MAX_VERBATIM_LINE
    assert all(line.endswith("length.") for line in parsed.lines[1:-1])
    assert " ".join(parsed.lines[1:-1]).split() == (sentence * 300).split()
    (warning,) = parsed.warnings
    assert warning.startswith("Lines of more than 4,000 characters: 1. They were divided")


@given(st.text(alphabet="ab .\u3002!", max_size=200), st.integers(1, 30))
def test_divided_lines_lose_only_white_space(line: str, size: int) -> None:
    parts = list(divide(line, size))

    assert all(0 < len(part) <= size for part in parts)
    assert "".join("".join(parts).split()) == "".join(line.split())


def test_json_in_one_long_line_is_formatted(tmp_path: Path) -> None:
    content = b'{"names": [' + b", ".join(b'"name %d"' % number for number in range(1000)) + b"]}"
    parsed = _parsed(tmp_path, content, "names.json")

    assert parsed.lines[:3] == ("{", ' "names": [', '  "name 0",')
    assert "formatted" in parsed.warnings[0]


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"[" * 900 + b"1," * 100_000 + b"1" + b"]" * 900, b'["\\ud800", ' + b"1" * 9000 + b"]"]
)
def test_hostile_json_is_text(tmp_path: Path, content: bytes) -> None:
    parsed = _parsed(tmp_path, content, "deep.json")

    assert "".join(parsed.lines) == content.decode()
    assert "divided" in parsed.warnings[0]


def test_text_beyond_the_limit_is_left_out(tmp_path: Path) -> None:
    limits = replace(ParseLimits(), text_bytes=12)

    whole = _parsed(tmp_path, "ü\U0001f600".encode() * 2, limits=limits)
    parsed = _parsed(tmp_path, "ü\U0001f600".encode() * 100, limits=limits)
    divided = _parsed(tmp_path, "a\U0001f600".encode() * 3, limits=limits)

    assert (whole.text, whole.warnings) == ("ü\U0001f600" * 2, ())
    assert parsed.text == "ü\U0001f600" * 2
    assert parsed.warnings == ("The file has more than 12 bytes. The rest was left out.",)
    assert divided.text == "a\U0001f600" * 2 + "a"


def test_a_csv_file_keeps_its_lines_also_with_a_huge_field(tmp_path: Path) -> None:
    content = f'a,b\n1,"x\ny"\n2,{"z" * 300_000}\n'
    parsed = _parsed(tmp_path, content.encode(), "table.csv")

    assert parsed.lines[:3] == ("a,b", '1,"x', 'y"')
    assert (parsed.kind, parsed.media_type) == (DocumentKind.DATA, "text/csv")
    assert len(parsed.warnings) == 1


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("intro\n\n# The title #\n\ntext", "The title"),
        ("---\nauthor: a\ntitle: 'A name'\n---\n# Heading", "A name"),
        ("no heading", ""),
    ],
)
def test_the_title_of_markdown(tmp_path: Path, text: str, title: str) -> None:
    assert _parsed(tmp_path, text.encode(), "a.md").title == title


def test_a_document_survives_json() -> None:
    document = ParsedDocument(
        DocumentKind.PROSE, "application/pdf", "a\nb", page_starts=(1, 2), page_names=("x", "y"), warnings=("w",)
    )

    assert ParsedDocument.from_json(document.to_json()) == document
    assert [document.page_of(line) for line in (1, 2)] == [1, 2]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "code"}', "null", '{"kind": 1, "page_starts": 2}'])
def test_other_json_is_no_document(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of its subclasses
        ParsedDocument.from_json(text)
