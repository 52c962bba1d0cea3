"""Documents of tests: good ones written by other libraries, and damaged or hostile ones derived from them."""

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from functools import cache
from itertools import pairwise
from typing import Any

import docx
import openpyxl
import pptx
from docx.enum.style import WD_STYLE_TYPE
from PIL import Image
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas

_SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def _saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


@cache
def word() -> bytes:
    document = docx.Document()
    for style in list(document.styles):
        if style.type is WD_STYLE_TYPE.TABLE and style.name != "Normal Table":
            style.delete()  # they take most of the time of a parser
    document.core_properties.title = "Annual report"
    document.add_heading("The year", 0)
    document.add_heading("Results", 1)
    paragraph = document.add_paragraph("Sales were ")
    paragraph.add_run("good").bold = True
    paragraph.add_run(".")
    for text in ("first", "second"):
        document.add_paragraph(text, style="List Bullet")
    for text in ("one", "two"):
        document.add_paragraph(text, style="List Number")
    table = document.add_table(rows=2, cols=2)
    for row, column, text in ((0, 0, "Region"), (0, 1, "Amount"), (1, 0, "North"), (1, 1, "7")):
        table.cell(row, column).text = text
    document.add_paragraph(" ".join(f"This is sentence {number} of a long paragraph." for number in range(20)))
    return _saved(document)


def word_with_footnote() -> bytes:
    reference = '<w:p><w:r><w:t>Text</w:t></w:r><w:r><w:footnoteReference w:id="2"/></w:r></w:p>'
    footnotes = '<w:footnote w:id="2"><w:p><w:r><w:t>The note.</w:t></w:r></w:p></w:footnote>'
    relation = (
        '<Relationship Id="rIdF" Target="footnotes.xml" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/footnotes"/></Relationships>'
    )
    return with_parts(
        word(),
        {
            "word/document.xml": word_body(reference.encode()),
            "word/footnotes.xml": f'<w:footnotes xmlns:w="{_WORD}">{footnotes}</w:footnotes>'.encode(),
            "word/_rels/document.xml.rels": lambda part: part.replace(b"</Relationships>", relation.encode()),
        },
    )


def word_body(body: bytes) -> bytes:
    return b'<w:document xmlns:w="%s"><w:body>%s</w:body></w:document>' % (_WORD.encode(), body)


@cache
def workbook() -> bytes:
    book = openpyxl.Workbook()
    book.properties.title = "Figures"
    sales = book.active
    sales.title = "Sales"
    for row in (
        ("Region", "Amount", "Day", "Done"),
        ("North", 1234.5, date(2026, 1, 2), True),
        (),
        ("South", 3.0, datetime(2026, 1, 2, 3, 4), None, "two\nlines"),  # noqa: DTZ001 - cells have no time zone
        (None, 0.1 + 0.2, time(4, 5)),
    ):
        sales.append(row)
    book.create_sheet("Empty")
    hidden = book.create_sheet("Secret")
    hidden["B2"] = "x"
    hidden.sheet_state = "hidden"
    return _saved(book)


def sheet(rows: bytes) -> bytes:
    """Returns a workbook whose first sheet has these rows as XML."""
    part = b'<worksheet xmlns="%s"><sheetData>%s</sheetData></worksheet>' % (_SPREADSHEET.encode(), rows)
    return with_parts(workbook(), {"xl/worksheets/sheet1.xml": part})


@cache
def presentation() -> bytes:
    slides = pptx.Presentation()
    slides.core_properties.title = "Plans"
    first = slides.slides.add_slide(slides.slide_layouts[1])
    first.shapes.title.text = "Goals"
    frame = first.placeholders[1].text_frame
    frame.text = "grow"
    level = frame.add_paragraph()
    level.text, level.level = "slowly", 1
    first.notes_slide.notes_text_frame.text = "Say it twice."
    second = slides.slides.add_slide(slides.slide_layouts[5])
    second.shapes.title.text = "Numbers"
    table = second.shapes.add_table(2, 2, 0, 2_000_000, 3_000_000, 1_000_000).table
    for row, column, text in ((0, 0, "a"), (0, 1, "b"), (1, 0, "1"), (1, 1, "2")):
        table.cell(row, column).text = text
    slides.slides.add_slide(slides.slide_layouts[6])
    return _saved(slides)


def pdf(password: str | None = None) -> bytes:
    buffer = io.BytesIO()
    canvas = Canvas(buffer, encrypt=StandardEncryption(password) if password else None)
    canvas.setTitle("A paper")
    for lines in (["First page.", "It has two lines."], [], ["Third page."]):
        for number, line in enumerate(lines):
            canvas.drawString(50, 800 - 15 * number, line)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def empty_pdf(pages: int) -> bytes:
    buffer = io.BytesIO()
    canvas = Canvas(buffer)
    for _ in range(pages):
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def pdf_of(*objects: bytes) -> bytes:
    """Returns a PDF of numbered objects, of which the first is the catalog."""
    data, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer <</Size %d /Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(data))
    return data + b"xref\n0 %d\n0000000000 65535 f \n%s%s" % (len(objects) + 1, table, end)


def pdf_with_loop() -> bytes:
    """Returns a PDF whose tree of pages contains itself, and whose page is its own content."""
    page = b"<</Type/Page/Parent 2 0 R/Contents 3 0 R/MediaBox[0 0 10 10]>>"
    return pdf_of(b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[2 0 R 3 0 R]/Count 2>>", page)


def pdf_bomb() -> bytes:
    """Returns a PDF of 3 kB whose page has 300 million characters."""
    stream = zlib.compress(zlib.compress(b"BT /F1 12 Tf 10 10 Td (%s) Tj ET\n" % (b"A" * 100) * 3_000_000, 9), 9)
    font = b"/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    return pdf_of(
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R%s>>" % font,
        b"<</Length %d/Filter[/FlateDecode/FlateDecode]>>stream\n%s\nendstream" % (len(stream), stream),
    )


_CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
)
_PACKAGE = (
    '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
    "<dc:title>A book</dc:title></metadata><manifest>"
    '<item id="two" href="2.xhtml" media-type="application/xhtml+xml"/>'
    '<item id="one" href="chapter%201.xhtml" media-type="application/xhtml+xml"/>'
    '<item id="css" href="style.css" media-type="text/css"/></manifest>'
    '<spine><itemref idref="one"/><itemref idref="two"/><itemref idref="css"/></spine></package>'
)


@cache
def book() -> bytes:
    chapter = "<?xml version='1.0'?><!DOCTYPE html><html><body><h1>{}</h1><p>{}</p></body></html>"
    return archive(
        {
            "mimetype": b"application/epub+zip",
            "META-INF/container.xml": _CONTAINER.encode(),
            "OEBPS/book.opf": _PACKAGE.encode(),
            "OEBPS/chapter 1.xhtml": chapter.format("Night", "It was dark &amp; cold.").encode(),
            "OEBPS/2.xhtml": chapter.format("Day", "It was léger.").encode(),
        }
    )


def image(kind: str, size: tuple[int, int] = (30, 20)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, "red").save(buffer, kind)
    return buffer.getvalue()


def png_of(width: int, height: int) -> bytes:
    """Returns the beginning of a PNG image that states a size."""
    header = b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\x02\0\0\0"
    return b"\x89PNG\r\n\x1a\n\0\0\0\x0d" + header + zlib.crc32(header).to_bytes(4) + b"\0\0\0\0IDAT\x35\xaf\x06\x1e"


def archive(parts: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return buffer.getvalue()


def with_parts(document: bytes, parts: Mapping[str, bytes | Callable[[bytes], bytes] | None]) -> bytes:
    """Returns a compressed document with other parts: replaced, changed by a function, added, or removed by None."""
    with zipfile.ZipFile(io.BytesIO(document)) as file:
        old = {name: file.read(name) for name in file.namelist()}
    new: dict[str, bytes] = dict(old)
    for name, part in parts.items():
        if part is None:
            del new[name]
        else:
            new[name] = part if isinstance(part, bytes) else part(old[name])
    return archive(new)


def entities(root: str, rest: bytes) -> bytes:
    """Returns XML whose entities expand to a gigabyte ("billion laughs")."""
    names = "abcdefghi"
    declared = ['<!ENTITY a "hahahahahahaha">']
    declared += [f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in pairwise(names)]
    return f"<!--{'x' * 100_000}--><!DOCTYPE {root} [{''.join(declared)}]>".encode() + rest


_OPENDOCUMENT = (
    '<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
    'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0" '
    'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0" '
    'xmlns:presentation="urn:oasis:names:tc:opendocument:xmlns:presentation:1.0">'
    "<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
)
_MANIFEST = '<manifest xmlns="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">{}</manifest>'


def opendocument(kind: str, body: str, *, encrypted: bool = False) -> bytes:
    """Returns an OpenDocument file of a kind: text, spreadsheet or presentation."""
    return archive(
        {
            "mimetype": f"application/vnd.oasis.opendocument.{kind}".encode(),
            "content.xml": _OPENDOCUMENT.format(kind=kind, body=body).encode(),
            "META-INF/manifest.xml": _MANIFEST.format("<encryption-data/>" if encrypted else "").encode(),
            "meta.xml": b'<meta xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The year</dc:title></meta>',
        }
    )
