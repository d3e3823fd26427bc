"""Draws bench_kernels' replay cells against the floor: achieved bandwidth over bytes a step must
move, one panel a layer."""
import math
import pathlib
import re

CARD = (pathlib.Path(__file__).resolve().parent.parent / "bench" / "common" / "card.h").read_text()


def rate_of(name):
    """A constant of bench/common/card.h."""
    return float(re.search(rf"\b{name} = ([0-9.e-]+);", CARD)[1])


# Bytes a second, and the launch: the floor of bench/kernels/cells.cpp.
READ, LAUNCH = rate_of("kReadBytesPerSecond"), rate_of("kLaunchSeconds")
BYTES = (1e6, 1e10)
RATE = (1e11, 6e12)
COLOURS = {"fp32": "#1f5fa8", "fp16": "#c2571a", "bf16": "#7a4ba0", "int8": "#2f7d4f"}
MARKS = {1: "circle", 4: "square", 8: "diamond"}
PANEL, GAP, LEFT, TOP, BOTTOM = 300, 24, 64, 56, 48


def place(value, limits, length):
    """The position of a value on a logarithmic axis."""
    low, high = (math.log10(x) for x in limits)
    return (math.log10(value) - low) / (high - low) * length


def mark(kind, x, y, colour):
    style = f'fill="{colour}" fill-opacity="0.75"'
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {style}/>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == "diamond" else ""
    return (f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" {style}{turn}/>')


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{words}</text>'


def floor_path(x0, y0):
    points = []
    for i in range(81):
        size = BYTES[0] * (BYTES[1] / BYTES[0]) ** (i / 80)
        rate = size / (size / READ + LAUNCH)
        if rate >= RATE[0]:
            points.append(f"{x0 + place(size, BYTES, PANEL):.1f},"
                          f"{y0 - place(rate, RATE, PANEL):.1f}")
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="#555" stroke-width="1.5"/>'


def panel(x0, y0, title, cells):
    out = [f'<rect x="{x0}" y="{y0 - PANEL}" width="{PANEL}" height="{PANEL}" fill="none" '
           'stroke="#999"/>', text(x0 + PANEL / 2, y0 - PANEL - 10, title)]
    for size, name in ((1e6, "1 MB"), (1e7, "10 MB"), (1e8, "100 MB"), (1e9, "1 GB"),
                       (1e10, "10 GB")):
        x = x0 + place(size, BYTES, PANEL)
        out.append(f'<line x1="{x:.1f}" y1="{y0}" x2="{x:.1f}" y2="{y0 - PANEL}" stroke="#eee"/>')
        out.append(text(x, y0 + 16, name))
    for rate in (1e11, 2e11, 5e11, 1e12, 2e12, READ):
        y = y0 - place(rate, RATE, PANEL)
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + PANEL}" y2="{y:.1f}" stroke="#eee"/>')
        out.append(text(x0 - 4, y + 4, f"{rate / 1e12:g}", "end"))
    out.append(floor_path(x0, y0))
    for cell in cells:
        size, rate = cell["must_move_bytes"], cell["bytes_per_second"]
        if BYTES[0] <= size <= BYTES[1] and RATE[0] <= rate <= RATE[1]:
            out.append(mark(MARKS[cell["window"]], x0 + place(size, BYTES, PANEL),
                            y0 - place(rate, RATE, PANEL), COLOURS[cell["dtype"]]))
    return out


def legend(y):
    out = [text(LEFT, y, f"line: the floor, {READ / 1e12:g} TB/s and {LAUNCH * 1e6:g} us; TB/s over bytes a step", "start")]
    x = LEFT + 390
    for dtype, colour in COLOURS.items():
        out += [mark("circle", x, y - 4, colour), text(x + 8, y, dtype, "start")]
        x += 56
    for window, kind in MARKS.items():
        out += [mark(kind, x, y - 4, "#444"), text(x + 8, y, f"T = {window}", "start")]
        x += 60
    return out


def roofline(cells, shapes):
    """The picture of the shapes' measured replay cells with T = 1, 4, 8."""
    width = LEFT + len(shapes) * (PANEL + GAP + 24)
    height = TOP + PANEL + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#222">',
           f'<rect width="{width}" height="{height}" fill="#fff"/>'] + legend(20)
    for i, (shape, title) in enumerate(shapes.items()):
        chosen = [c for c in cells if c["shape"] == shape and c["way"] == "replay" and "us" in c
                  and c["window"] in MARKS]
        out += panel(LEFT + i * (PANEL + GAP + 24), TOP + PANEL, title, chosen)
    return "\n".join(out + ["</svg>"]) + "\n"
