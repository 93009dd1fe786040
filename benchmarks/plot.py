"""Draw the picture of ratios: a bar for each model and thread count, with one panel for each peer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

COLOURS = {"1": "#4477aa", "2": "#ee6677"}
"""The bars' colours by number of threads. Readers who can't distinguish red from green can distinguish
them."""
HEIGHT = 0.38
"""The height of a bar, as a share of a model's row. A row has two bars and a gap."""


def draw(ratios: Mapping[str, Mapping[str, Mapping[str, float]]], title: str, path: Path) -> None:
    """Write an SVG of the ratios (by peer, number of threads and model). Equal ratios and titles give equal
    bytes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "jangin"
    from matplotlib import pyplot

    names = list(dict.fromkeys(n for by in ratios.values() for found in by.values() for n in found))
    size = (11, 1.4 + 0.34 * len(names))
    figure, panels = pyplot.subplots(
        1, len(ratios), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axes, (peer, by_threads) in zip(panels[0], ratios.items(), strict=True):
        for k, (threads, found) in enumerate(by_threads.items()):
            places = [names.index(name) + (k - 0.5) * HEIGHT for name in found]
            label = f"{threads} thread{'s' * (threads != '1')}"
            bars = axes.barh(places, list(found.values()), HEIGHT, color=COLOURS.get(threads), label=label)
            axes.bar_label(bars, fmt="%.2f", fontsize=6, padding=2)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(f"against {peer}", fontsize=10)
        axes.set_xlabel("times as fast")
        axes.margins(x=0.12, y=0.01)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_yticks(range(len(names)), names)
    panels[0][0].invert_yaxis()
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, len(handles)))
    figure.suptitle(f"{title}: speed as a multiple of each peer's (over 1: Jangin is the faster)")
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
