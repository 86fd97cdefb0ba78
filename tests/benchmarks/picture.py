"""The picture in README: how long jobs wait, by policy and load."""

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

PLACE = Path(__file__).resolve().parent / "wait.png"
PLAIN = {"linewidth": 1.5}
#: Those that lie upon one another are drawn as layers.
STYLES = {
    "Celery, prefetch 1, acks_late": {"color": "silver", "linewidth": 8, "zorder": 3},
    "celery_gpulease": {"color": "black", "linewidth": 3.5, "zorder": 4},
    "optimum of one line (M/G/8)": {"color": "yellow", "linestyle": ":", "linewidth": 2, "zorder": 5},
}


def draw(found, place=PLACE):
    """Draws p99 waits.

    Args:
        found: (distribution, policy, load) → its verdict, of jobs in seconds.
        place: Where the PNG goes.
    """
    mpl.use("Agg")
    distributions, policies, loads = (list(dict.fromkeys(one)) for one in zip(*found, strict=True))
    figure, panels = plt.subplots(1, len(distributions), figsize=(10, 4.6), sharey=True, layout="constrained")
    for panel, distribution in zip(panels, distributions, strict=True):
        for policy in policies:
            waits = [found[distribution, policy, load].p99_wait / 60 for load in loads]
            panel.plot(loads, waits, marker="o", markersize=4, label=policy, **STYLES.get(policy, PLAIN))
        panel.set(title=distribution, xlabel="load", xticks=loads, yscale="log")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("wait, p99, minutes")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(place, dpi=120, metadata={"Software": None})
    plt.close(figure)
