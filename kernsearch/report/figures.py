"""Pictures by matplotlib, which is imported when one is drawn."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import files
from ..errors import FigureError

_NEEDS = "pictures want matplotlib: pip install 'kernsearch[explore]'"

# The same data make the same file, and words in it stay words.
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "kernsearch",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
}


def check() -> None:
    """Raise FigureError where no picture can be drawn, without loading what draws it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise FigureError(_NEEDS)


@contextmanager
def drawing() -> Iterator[Any]:
    """`matplotlib.pyplot` without a display; figures are closed at the end. Raises FigureError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise FigureError(_NEEDS) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_STYLE):
        try:
            yield pyplot
        finally:
            pyplot.close("all")


def save(figure: Any, path: Path) -> None:
    """In the format of the file's ending. Raises OutputError when the file cannot be written."""
    form = path.suffix.removeprefix(".").lower()
    drawn = io.BytesIO()
    figure.savefig(drawn, format=form, metadata={"Date": None} if form == "svg" else None)
    files.hand({path: drawn.getvalue()})


def svg(figure: Any) -> str:
    """The figure as text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def plain_ticks(axis: Any, spell: Callable[[float], str]) -> None:
    """Ticks of a logarithmic axis as people write them, between powers of ten too where few of these are in sight."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    between: tuple[float, ...] = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    if high / low > 4:
        between = (1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)
    axis.set_major_locator(LogLocator(subs=between))
    axis.set_major_formatter(FuncFormatter(lambda value, _: spell(value)))
    axis.set_minor_formatter(NullFormatter())
