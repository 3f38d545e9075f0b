"""Elements of an XML text with the lines that they begin in, so that an error can name the place."""

import xml.parsers.expat
from collections.abc import Iterator
from dataclasses import dataclass, field

from trimaran.errors import InputError


@dataclass(slots=True, kw_only=True)
class Element:
    """An element of the file, with the line that it begins in."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)

    def walk(self) -> Iterator["Element"]:
        """This one and all inside it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()


def read_xml(text: str, *, file: str, root_tag: str) -> Element:
    """The root of an XML text.

    Args:
        text: to read
        file: name of it, for messages
        root_tag: that the root must have

    Raises:
        InputError: it is not XML, or has another root
    """
    root = Element(tag="", attributes={}, line=0)
    open_elements = [root]
    parser = xml.parsers.expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag=tag, attributes=attributes, line=parser.CurrentLineNumber)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(tag: str) -> None:
        open_elements.pop()

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        parser.Parse(text, True)
    except xml.parsers.expat.ExpatError as error:
        raise InputError(
            f"{file}: line {error.lineno}: not XML: {error}", code="xml.malformed", file=file, line=error.lineno
        ) from None
    found = root.children[0]
    if found.tag != root_tag:
        raise InputError(
            f"{file}: line {found.line}: expected <{root_tag}>, got <{found.tag}>", code="xml.wrong-root", file=file
        )
    return found
