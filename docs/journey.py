"""Draws `journey.svg`, the picture in README: `python docs/journey.py`.

It needs nothing but Python. The picture has colours for a light and for a dark page, and a background of its own, so
that it can be read on either.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PLACE = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 1050, 540
LINE_HEIGHT = 19

STYLE = """
  .page { fill: #ffffff; } .box { fill: #f6f8fa; stroke: #57606a; } .ledger { fill: #fff8e6; stroke: #9a6700; }
  .slot { fill: #ddf4ff; stroke: #0969da; } .busy { fill: #ffebe9; stroke: #cf222e; }
  .free { fill: #dafbe1; stroke: #1a7f37; stroke-dasharray: 6 4; }
  text { fill: #1f2328; font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
  .title { font-weight: 600; } .code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
  .small { font-size: 12.5px; } .middle { text-anchor: middle; } .step { font-weight: 700; }
  .arrow { stroke: #1f2328; stroke-width: 1.8; fill: none; } .event { stroke-dasharray: 5 4; } .head { fill: #1f2328; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; } .box { fill: #161b22; stroke: #8b949e; } .ledger { fill: #211c10; stroke: #d29922; }
    .slot { fill: #0c2d6b; stroke: #58a6ff; } .busy { fill: #4c1519; stroke: #f85149; }
    .free { fill: #0f2f1b; stroke: #3fb950; }
    text { fill: #e6edf3; } .arrow { stroke: #e6edf3; } .head { fill: #e6edf3; }
  }
"""


def box(kind: str, x: int, y: int, width: int, height: int) -> str:
    """A rectangle with round corners."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


def words(kind: str, x: int, y: int, *lines: str) -> str:
    """Lines of text, one under the other; `y` is the foot of the first."""
    return "\n".join(
        f'<text class="{kind}" x="{x}" y="{y + number * LINE_HEIGHT}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )


def arrow(x1: int, y1: int, x2: int, y2: int, kind: str = "arrow") -> str:
    """A straight arrow."""
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#head)"/>'


def senders() -> list[str]:
    """On the left: who wants a GPU."""
    return [
        box("box", 20, 110, 190, 110),
        words("title", 36, 136, "Senders"),
        words("small", 36, 160, "delay(), send_task(),", "chain, chord, retry, beat"),
        arrow(210, 150, 318, 150),
        words("step middle", 264, 140, "1 HOLD"),
        box("box", 20, 338, 190, 112),
        words("title", 36, 364, "Other programs"),
        words("small", 36, 388, "gpulease run, reserve,", "a notebook:", "SET … NX PX"),
        arrow(210, 394, 318, 394),
    ]


def ledger() -> list[str]:
    """In the middle: the lines and the leases."""
    slots = [box("slot", 338 + 56 * number, 132, 46, 34) for number in range(5)]
    names = [words("middle", 361 + 56 * number, 154, name) for number, name in enumerate(["1st", "2nd", "3rd", "…"])]
    return [
        box("ledger", 300, 30, 360, 440),
        words("title", 318, 56, "Redis: the ledger"),
        box("box", 318, 80, 324, 128),
        words("small", 338, 104, "the line of pool default: whole messages"),
        *slots,
        *names,
        words("small", 338, 192, "by priority; within one, who came first"),
        arrow(366, 208, 366, 288),
        words("step", 376, 252, "2 CLAIM"),
        arrow(600, 288, 600, 208),
        words("step", 470, 240, "7 REAP"),
        words("small", 470, 258, "nobody renews it:"),
        words("small", 470, 275, "back to its place"),
        box("busy", 318, 288, 324, 70),
        words("code", 338, 314, "gpu:lease:node7:0"),
        words("small", 338, 340, "the key is there: busy, for 27 s more"),
        box("free", 318, 374, 324, 70),
        words("code", 338, 400, "gpu:lease:node7:1"),
        words("small", 338, 426, "no such key: this GPU is free"),
    ]


def workers() -> list[str]:
    """On the right: who has the GPUs."""
    return [
        box("box", 850, 252, 184, 116),
        words("code", 864, 280, "worker --gpu 0"),
        words("small", 864, 306, "one task at a time;", "CUDA_VISIBLE_DEVICES", "shows it this GPU only"),
        arrow(642, 298, 848, 298),
        words("step middle", 755, 271, "3 ROUTE"),
        words("small middle", 755, 289, "queue gpu.node7:0"),
        arrow(850, 328, 644, 328),
        words("step middle", 755, 321, "4 START · 5 RENEW"),
        arrow(850, 356, 644, 356),
        words("step middle", 755, 349, "6 RELEASE"),
        box("box", 850, 384, 184, 68),
        words("code", 864, 412, "worker --gpu 1"),
        words("small", 864, 436, "listens to its lease key"),
        arrow(642, 418, 848, 418, "arrow event"),
        words("small middle", 755, 410, "the key vanished"),
    ]


def reconciler() -> list[str]:
    """Below: who looks whether all of it is true."""
    return [
        box("box", 300, 488, 734, 36),
        words("step", 318, 511, "RECONCILE"),
        words("small", 412, 511, "every 30 s: what Redis says against what the workers report; Redis is corrected"),
    ]


def picture() -> str:
    """The whole SVG."""
    parts = [box("page", 0, 0, WIDTH, HEIGHT), *ledger(), *senders(), *workers(), *reconciler()]
    head = '<marker id="head" markerWidth="9" markerHeight="9" refX="7" refY="3.5" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            "<title>The journey of a task: held, claimed, routed, started, renewed, released</title>",
            f"<style>{STYLE}</style>",
            f'<defs>{head}<path class="head" d="M0,0 L8,3.5 L0,7 z"/></marker></defs>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PLACE.write_text(picture())
