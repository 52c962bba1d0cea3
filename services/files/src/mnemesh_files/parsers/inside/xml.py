"""XML parts of documents, without entities, network and external files."""

from __future__ import annotations

from lxml import etree

from mnemesh_files.parsers.inside.archive import damaged


def element(data: bytes) -> etree._Element:
    """Returns the root of an XML part.

    Raises:
        DocumentUnreadable: It is no XML.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, recover=True)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError:
        root = None
    if root is None:
        raise damaged("a part is no XML")
    return root


def text_of(root: etree._Element, local_name: str) -> str:
    """Returns the text of the first element with this name in any namespace; "" if there is none."""
    for found in root.iter(f"{{*}}{local_name}"):
        return " ".join("".join(found.itertext()).split())
    return ""
