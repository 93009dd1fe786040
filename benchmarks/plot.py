"""The picture of ratios: a bar for each model and thread count, against one peer a panel."""

from __future__ import annotations

from pathlib import Path

from catalogue import CATALOGUE
from figures import BEST, Figures, ratio

PANELS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", BEST: "the best of all peers"}
COLOURS = {1: "#4477aa", 2: "#ee6677"}
HEIGHT = 0.38
"""Of a bar, where a model has 1."""


def draw(figures: Figures, mode: str, path: Path) -> None:
    """An SVG whose bytes depend on the figures only."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "jangin"
    from matplotlib import pyplot

    names = [name for name in CATALOGUE if any(name == n for t in COLOURS for n, _ in figures.of(mode, t))]
    size = (11, 1.4 + 0.34 * len(names))
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=size, sharey=True, layout="constrained")
    for axes, (peer, title) in zip(panels, PANELS.items(), strict=True):
        for k, (threads, colour) in enumerate(COLOURS.items()):
            found = {name: value for name, c in figures.of(mode, threads) if (value := ratio(c, peer))}
            places = [names.index(name) + (k - 0.5) * HEIGHT for name in found]
            label = f"{threads} thread{'s' if threads > 1 else ''}"
            bars = axes.barh(places, list(found.values()), HEIGHT, color=colour, label=label)
            axes.bar_label(bars, fmt="%.2f", fontsize=6, padding=2)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(f"against {title}", fontsize=10)
        axes.set_xlabel("times as fast")
        axes.margins(x=0.12, y=0.01)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), [CATALOGUE[name].title for name in names])
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(COLOURS))
    figure.suptitle(f"Jangin, {mode}: speed as a multiple of each peer's (over 1: Jangin is the faster)")
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
