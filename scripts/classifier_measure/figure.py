"""Draw docs/images/classifier_rivals.png: accuracy and calibration of the classifier and of its rivals, by shots."""

from matplotlib.figure import Figure

from classifier_measure import kept
from classifier_measure.page_tables import OURS, RESULTS
from e3bm.report.drawing import SERIES, Drawing, draw_figure

PANELS = (("birds", 5), ("mini", 20), ("digits", 10), ("topics", 12))
LINES = {
    OURS: "e3bm",
    "nearest mean, centred cosine": "nearest mean (centred cosine)",
    "logistic regression, C by likelihood": "logistic regression, C chosen",
    "LogisticRegression()": "LogisticRegression()",
    "linear SVM": "linear SVM",
}


def draw_rivals() -> Drawing:
    """Four kinds of data, one column each: accuracy above, ECE below."""
    found = kept.read(RESULTS / "measured.json.xz")

    def compose(figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        rows = figure.subplots(2, len(PANELS), sharex=True)
        for (above, below), (data, ways) in zip(rows.T, PANELS, strict=True):
            for place, (method, label) in enumerate(LINES.items()):
                own = [row for row in found[data]["rows"] if (row["method"], row["ways"]) == (method, ways)]
                shots = [row["shots"] for row in own]
                look = {"color": SERIES[place], "marker": "o", "markersize": 3, "linewidth": 2 if method == OURS else 1}
                look |= {"zorder": 3 if method == OURS else 2}
                above.plot(shots, [row["accuracy"] for row in own], label=label, **look)
                below.plot(shots, [row["ece"] for row in own], **look)
            above.set(title=f"{data}, {ways} classes", xscale="log")
            below.set(xlabel="examples of each class", ylim=(0, None))
            below.set_xticks(shots, labels=map(str, shots))
            below.minorticks_off()
        rows[0, 0].set_ylabel("accuracy, %")
        rows[1, 0].set_ylabel("calibration error, %")
        figure.legend(*rows[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)

    return draw_figure("classifier_rivals", "", compose, width=9, height=4.4)
