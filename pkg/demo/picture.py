"""The picture of a whole play, as SVG."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from pkg.demo.checks import Report
from pkg.demo.chronicle import Chronicle
from pkg.demo.view import Size, view

_SIZE = Size(width=118, chart=14, talk=0)
_BACKGROUND, _FOREGROUND = (18, 22, 28), (201, 209, 217)
# Every colour in use is given as such (palette.py): the theme's sixteen are not looked at.
_THEME = TerminalTheme(_BACKGROUND, _FOREGROUND, [_FOREGROUND] * 8)
# No web fonts: a picture in a README may not load any.
_FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" class="headroom" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def record(path: Path, chronicle: Chronicle, report: Report, now: float) -> None:
    """Write the picture. Raises OSError."""
    path.write_text(svg(chronicle, report, now), "utf-8")


def svg(chronicle: Chronicle, report: Report, now: float) -> str:
    """The picture's text."""
    console = Console(
        record=True,
        width=_SIZE.width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        # NO_COLOR, COLUMNS and TERM are about the terminal, not about the picture.
        _environ={},
    )
    console.print(view(chronicle, report, now=now, size=_SIZE, live=False))
    return console.export_svg(
        title="headroom demo", theme=_THEME, code_format=_FORMAT, unique_id="headroom", clear=False
    )
