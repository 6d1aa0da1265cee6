"""One task as a picture: its labelled examples and some of its queries, from the data on this machine."""

import os

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from e3bm.errors import E3BMError
from e3bm.report.drawing import MUTED, SERIES, WIDTH, Drawing, draw
from e3bm.runs.result import Result

MOST_CLASSES, MOST_SHOTS, MOST_QUERIES = 10, 5, 4
TILE = 84  # pixels of a side, at least
GAP = 0.12  # of a tile; between labelled examples and queries three times as much


def task_picture(name: str, result: Result, folder: str | os.PathLike[str] | None = None) -> Drawing | str:
    """The first task that a result was measured on, or a sentence where its data is not at hand: none is fetched."""
    from e3bm.core.episode import EpisodeSpec
    from e3bm.data.episodes.sampler import EpisodeSampler
    from e3bm.data.source import open_dataset

    try:
        images = open_dataset(result.dataset, folder)
        spec = EpisodeSpec(result.ways, result.shots, result.queries, result.query_shares)
        sampler = EpisodeSampler.of_split(images, result.split, spec, result.episodes_seed, stream="test")
    except E3BMError:
        return f"Its tasks are not shown: {result.dataset} is not on this machine in the form that was tested on."
    if images.digest != result.data_digest:
        return f"Its tasks are not shown: the {result.dataset} on this machine is not the one that was tested on."
    episode = sampler[0]
    ways = min(episode.ways, MOST_CLASSES)
    columns = []
    for way in range(ways):
        shots = [place for place, label in zip(episode.support, episode.support_labels, strict=True) if label == way]
        queries = [place for place, label in zip(episode.query, episode.query_labels, strict=True) if label == way]
        columns.append((shots[:MOST_SHOTS], queries[:MOST_QUERIES]))
    positions = np.array([place for shots, queries in columns for place in (*shots, *queries)], np.int64)
    tiles = iter(_tile(pixels) for pixels in images.gather(positions))
    pictures = [([next(tiles) for _ in shots], [next(tiles) for _ in queries]) for shots, queries in columns]
    return _drawn(name, result, pictures)


Tile = UInt8[np.ndarray, "H W 3"]


def _tile(pixels: UInt8[np.ndarray, "H W C"]) -> Tile:
    """In three colours, and large enough that a screen shows its pixels as they are."""
    colours = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    times = -(-TILE // colours.shape[0])
    return colours.repeat(times, axis=0).repeat(times, axis=1)


def _drawn(name: str, result: Result, pictures: list[tuple[list[Tile], list[Tile]]]) -> Drawing:
    shots, queries = (max(len(column[part]) for column in pictures) for part in (0, 1))
    below = shots * (1 + GAP) + 2 * GAP  # where queries begin

    def paint(axes: Axes) -> list[Line2D]:
        for way, (support, asked) in enumerate(pictures):
            left = way * (1 + GAP)
            for row, tile in enumerate(support):
                _put(axes, tile, left, row * (1 + GAP), SERIES[0])
            for row, tile in enumerate(asked):
                _put(axes, tile, left, below + row * (1 + GAP), MUTED)
            axes.text(left + 0.5, -0.12, str(way + 1), ha="center", va="bottom")
        for place, words in ((shots / 2, "labelled"), (below + queries / 2, "to answer")):
            axes.text(-0.15, place, words, ha="right", va="center")
        axes.set(xlim=(-1.9, len(pictures) * (1 + GAP)), ylim=(below + queries * (1 + GAP), -0.6))
        axes.set_aspect("equal")
        axes.axis("off")
        return []

    caption = (
        f"One task of {result.dataset} {result.split} ({result.task}): above, the labelled examples of each class, all "
        "that a model learns from; below, queries in the column of their right answer, which the model is not told"
        f"{_left_out(result, len(pictures), queries)}."
    )
    height = WIDTH * (below + queries * (1 + GAP) + 0.7) / (len(pictures) * (1 + GAP) + 1.9)
    return draw(name, caption, paint, height=height)


def _put(axes: Axes, tile: Tile, left: float, top: float, colour: str) -> None:
    axes.imshow(tile, extent=(left, left + 1, top + 1, top), interpolation="none", zorder=2)
    axes.plot([left, left + 1, left + 1, left, left], [top, top, top + 1, top + 1, top], color=colour, lw=1.2, zorder=3)


def _left_out(result: Result, ways: int, queries: int) -> str:
    if result.ways > ways:
        return f" ({ways} of {result.ways} classes are shown)"
    return f" ({queries} of {result.queries} queries of each class are shown)" if result.queries > queries else ""
