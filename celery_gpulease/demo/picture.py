"""The picture that the jobs make: the Mandelbrot set in tiles, which differ in cost by a factor of a hundred."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDTH: Final = 480
HEIGHT: Final = 288
COLUMNS: Final = 12
ROWS: Final = 8
TILE_WIDTH: Final = WIDTH // COLUMNS
TILE_HEIGHT: Final = HEIGHT // ROWS
TILES: Final = range(COLUMNS * ROWS)

#: Iterations after which a point counts as one of the set; a pixel is one byte.
LIMIT: Final = 255
CENTRE: Final = complex(-0.65, 0.0)
SPAN: Final = 3.0


def pixel(x: int, y: int) -> int:
    """The iterations until this point escapes, at most `LIMIT`."""
    point = CENTRE + complex(x - WIDTH / 2, y - HEIGHT / 2) * (SPAN / WIDTH)
    z = 0j
    for count in range(LIMIT):
        z = z * z + point
        if abs(z) > 2:  # noqa: PLR2004 - it never comes back from there
            return count
    return LIMIT


def tile_rows(tile: int) -> Iterator[bytes]:
    """The pixels of a tile, row by row."""
    top, left = divmod(tile, COLUMNS)
    for y in range(top * TILE_HEIGHT, (top + 1) * TILE_HEIGHT):
        yield bytes(pixel(x, y) for x in range(left * TILE_WIDTH, (left + 1) * TILE_WIDTH))


def cost(pixels: bytes) -> int:
    """What making these pixels took: iterations."""
    return sum(pixels) + len(pixels)


def assemble(tiles: Sequence[bytes]) -> bytes:
    """The picture, from its tiles in their order."""
    picture = bytearray()
    for y in range(HEIGHT):
        top, row = divmod(y, TILE_HEIGHT)
        for tile in tiles[top * COLUMNS : (top + 1) * COLUMNS]:
            picture += tile[row * TILE_WIDTH : (row + 1) * TILE_WIDTH]
    return bytes(picture)


@dataclass(frozen=True)
class Reference:
    """The whole picture, made in one process, and what each tile cost."""

    pixels: bytes
    costs: tuple[int, ...]

    @classmethod
    def make(cls) -> Reference:
        """Makes it, in this process."""
        tiles = [b"".join(tile_rows(tile)) for tile in TILES]
        return cls(assemble(tiles), tuple(map(cost, tiles)))


def pack(pixels: bytes) -> str:
    """Pixels as a text that travels in JSON."""
    return base64.b64encode(zlib.compress(pixels)).decode()


def unpack(text: str) -> bytes:
    """The pixels in such a text."""
    return zlib.decompress(base64.b64decode(text))


def colour(count: int) -> tuple[int, int, int]:
    """The colour of a pixel: from night to light, the set itself black."""
    if count >= LIMIT:
        return (0, 0, 0)
    light = (count / LIMIT) ** 0.45
    return (
        round(255 * min(1, light * 1.9)),
        round(255 * min(1, light**1.4 * 1.7)),
        round(70 + 160 * min(1, light * 1.2)),
    )


def png(pixels: bytes) -> bytes:
    """The picture as a PNG file, with a palette."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)  # 8 bits a pixel, which name a colour of the palette
    palette = b"".join(bytes(colour(count)) for count in range(256))
    lines = b"".join(b"\0" + pixels[y * WIDTH : (y + 1) * WIDTH] for y in range(HEIGHT))  # each unfiltered
    chunks = (b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in chunks)
