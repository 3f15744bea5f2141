"""Generated federated data: glyphs from many fonts."""

from pathlib import Path

import numpy as np

from workbench.errors import DataError, needs_library
from workbench.federated.data._client_data import ClientData

_SIZE = 16


def rendered_glyphs(*, writers: int = 24, characters: str = "0123456789", copies: int = 8, seed: int = 0) -> ClientData:
    """Draws characters for many writers; each writer is a matplotlib font with a slant and a weight.

    The data set is a substitute for FEMNIST and needs no network. The same classes look different at every client
    (feature heterogeneity), and a client's id is its writer. The images are generated, not handwritten.

    Args:
        writers: Number of clients.
        characters: The classes; every writer draws each of them.
        copies: Number of drawings of each character per writer, each with a small shift, rotation and scale.
        seed: Seed for all random choices.

    Returns: Clients with two fields. `x`, float32 `[copies * characters, 256]`, contains images of 16 × 16 pixels in
        row order, where ink is 1. `y`, int32, contains indices into `characters`.

    Raises:
        DataError: if the number of writers, copies or characters is below 1.
        MissingDependencyError: if matplotlib is not installed.

    Example:
        >>> glyphs = rendered_glyphs(writers=2, characters="01", copies=3)
        >>> glyphs.counts.tolist(), glyphs[0]["x"].shape
        ([6, 6], (6, 256))

    References:
        Caldas et al., arXiv 1812.01097 (FEMNIST, which this imitates).
    """
    if min(writers, copies, len(characters)) < 1:
        message = (
            f"`rendered_glyphs` received writers={writers}, copies={copies} and {len(characters)} characters. Each "
            "writer draws at least one character at least once: pass positive numbers, and at least one character."
        )
        raise DataError(message)
    fonts = _fonts()
    random = np.random.default_rng(seed)
    arrays = {}
    for writer in range(writers):
        font = fonts[writer % len(fonts)]
        slant, weight = (0.0, 1.0) if writer < len(fonts) else (random.uniform(-0.3, 0.3), random.uniform(0.7, 1.4))
        drawn = {character: _draw(font, character) for character in set(characters)}
        x = [_vary(drawn[character], random, slant) ** (1 / weight) for _ in range(copies) for character in characters]
        labels = np.tile(np.arange(len(characters), dtype=np.int32), copies)
        name = f"{Path(font).stem} {writer // len(fonts)}" if writer >= len(fonts) else Path(font).stem
        arrays[name] = {"x": np.stack(x).reshape(-1, _SIZE * _SIZE).astype(np.float32), "y": labels}
    return ClientData(arrays=arrays, name="rendered glyphs", label="y", classes=tuple(characters))


def _fonts() -> list[str]:
    """Lists matplotlib's text fonts in order, without symbol fonts, which lack digits."""
    with needs_library("matplotlib", needed_for="`rendered_glyphs`"):
        import matplotlib
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    families = ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmr10", "cmss10", "cmtt10", "cmb10")
    paths = sorted(str(path) for path in folder.glob("*.ttf") if path.stem.startswith(families))
    return [path for path in paths if "Display" not in path]


def _draw(font: str, character: str) -> np.ndarray:
    """Draws a centred character at twice the final size: 1 for ink, 0 for paper."""
    from matplotlib.ft2font import FT2Font

    face = FT2Font(font)
    face.set_size(24, 72)
    face.set_text(character, 0)
    face.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.asarray(face.get_image(), np.float64) / 255
    square = np.zeros((2 * _SIZE, 2 * _SIZE))
    ink = ink[: 2 * _SIZE, : 2 * _SIZE]
    top, left = (2 * _SIZE - ink.shape[0]) // 2, (2 * _SIZE - ink.shape[1]) // 2
    square[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return square


def _vary(image: np.ndarray, random: np.random.Generator, slant: float) -> np.ndarray:
    """Halves an image by bilinear interpolation, after a small rotation, scaling, shift and slant."""
    turn, scale = random.normal(0, 0.08), random.uniform(1.75, 2.1)
    shift = random.normal(0, 0.6, 2)
    at = np.stack(np.meshgrid(*[np.arange(_SIZE) - (_SIZE - 1) / 2] * 2, indexing="ij"))
    rotation = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn) + slant, np.cos(turn)]])
    source = np.tensordot(rotation, at, 1) + (len(image) - 1) / 2 + shift[:, None, None]
    low = np.clip(np.floor(source).astype(int), 0, len(image) - 2)
    part = np.clip(source - low, 0, 1)
    (row, column), (down, right) = low, part
    above = image[row, column] * (1 - right) + image[row, column + 1] * right
    below = image[row + 1, column] * (1 - right) + image[row + 1, column + 1] * right
    return above * (1 - down) + below * down
