"""A few shapes of SVG, with text that stays text: on white in a file, on the ground of the page in one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from trimaran.base.errors import InputError
from trimaran.base.files import check_writable, write_whole
from trimaran.base.printable import printable

Point = tuple[float, float]


def check_drawing(path: Path) -> None:
    """Refuse a file that a drawing could not be written into, before the work for it is done.

    Args:
        path: where it will be written

    Raises:
        InputError: its name is that of another format
        EnvironmentProblem: it cannot be written there
    """
    if path.suffix.lower() != ".svg":
        raise InputError(
            f"{path}: drawings are written as SVG, which browsers show: name the file *.svg",
            code="drawing.not-svg",
            path=str(path),
        )
    check_writable(path)


def write_drawing(path: Path, text: str) -> None:
    """Write a drawing.

    Args:
        path: file to write
        text: of the SVG file

    Raises:
        EnvironmentProblem: the file cannot be written there
    """
    write_whole(path, text.encode())


@dataclass(slots=True)
class Drawing:
    """Shapes in the order in which they are drawn.

    Attributes:
        width: of the drawing [pixels]
        height: of the drawing [pixels]
        title: what it shows, for those who do not see it; "": nothing is said
        inline: it is a part of a page, whose ground and fonts it has

    Example:
        >>> drawing = Drawing(width=10, height=5)
        >>> drawing.box(1, 1, 2, 3, colour="#000")
        >>> "<rect" in drawing.render()
        True
    """

    width: float
    height: float
    title: str = ""
    inline: bool = False
    _shapes: list[str] = field(default_factory=list)

    def line(self, points: Sequence[Point], *, colour: str, width: float = 1.0, dashed: bool = False) -> None:
        """A line through points."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(
            f'<polyline points="{_path(points)}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dash}/>'
        )

    def box(self, x: float, y: float, width: float, height: float, *, colour: str, says: str = "") -> None:
        """A filled box by its upper left corner; a pointer on it reads what it says."""
        self._shape("rect", f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"', says)

    def area(self, points: Sequence[Point], *, colour: str, opacity: float = 1.0) -> None:
        """A filled area by its corners."""
        self._shape("polygon", f'points="{_path(points)}" fill="{colour}" fill-opacity="{opacity:g}"', "")

    def dot(self, x: float, y: float, *, colour: str, size: float = 3.0, hollow: bool = False, says: str = "") -> None:
        """A point of a curve; a pointer on it reads what it says."""
        fill = f'fill="none" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'
        self._shape("circle", f'cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" {fill}', says)

    def _shape(self, name: str, attributes: str, says: str) -> None:
        told = f">{_title(says)}</{name}>" if says else "/>"
        self._shapes.append(f"<{name} {attributes}{told}")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 11,
        anchor: str = "start",
        colour: str = "#222",
        bold: bool = False,
    ) -> None:
        """Words, by the left, middle or right end of their base line."""
        weight = ' font-weight="bold"' if bold else ""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{weight}>'
            f"{escape(printable(text))}</text>"
        )

    def element(self, text: str, x: float, y: float) -> None:
        """A drawing that was rendered inline, by its upper left corner."""
        self._shapes.append(text.replace("<svg ", f'<svg x="{x:.0f}" y="{y:.0f}" ', 1))

    def render(self) -> str:
        """The file's text."""
        size = f'width="{self.width:.0f}" height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        if self.inline:
            return "\n".join((f'<svg {size} role="img">', _title(self.title), *self._shapes, "</svg>")) + "\n"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">'
        ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
        return "\n".join((head, ground, *self._shapes, "</svg>")) + "\n"


def _title(text: str) -> str:
    return f"<title>{escape(printable(text))}</title>"


def _path(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
