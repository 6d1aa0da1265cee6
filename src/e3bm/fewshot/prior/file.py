"""The file of a prior, shipped or trained by a user: safetensors with JSON as its metadata."""

import json
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from e3bm.core.learner import MetaLearner
from e3bm.errors import CheckpointError
from e3bm.fewshot.prior.learner import Votes, build_prior
from e3bm.fewshot.prior.shipped import PHOTOS, SHIPPED, TRUST_BY_KIND, no_prior
from e3bm.fewshot.prior.together import build_batch_prior
from e3bm.fewshot.trust import TrustPrior
from e3bm.json_files import parse_json
from e3bm.runs.folder.checkpoint import misfit
from e3bm.runs.folder.files import read_json, write_bytes
from e3bm.runs.folder.tensor_files import read_tensor_file, tensor_file

FORMAT, VERSION, ABOUT = "e3bm-prior", 2, "about"


@dataclass(frozen=True, eq=False)
class FewShotPrior:
    """A meta-trained prior, and what was learned about confidence with it."""

    inductive: MetaLearner
    together: MetaLearner
    """SIB+E3BM on top of the inductive prior, for unlabelled examples that are used together."""
    trust: TrustPrior
    training: dict[str, Any]
    """Where it comes from: settings, data, commit."""
    digest: str
    """The sha256 of the file."""

    @property
    def learned_digest(self) -> str:
        """A name for exactly the learned parts, with whatever numbers of trust."""
        from e3bm.runs.assembly import weights_digest  # and all methods with it

        return weights_digest(nn.ModuleDict({"inductive": self.inductive, "together": self.together}))

    def learner(self, dtype: torch.dtype) -> MetaLearner:
        """The learner in a precision; copies, because fits may run at the same time."""
        return self._frozen[dtype == torch.double, False]

    def learner_together(self, dtype: torch.dtype) -> MetaLearner:
        """The learner for examples that are used together, in a precision."""
        return self._frozen[dtype == torch.double, True]

    @cached_property
    def _frozen(self) -> dict[tuple[bool, bool], MetaLearner]:
        return {
            (double, learner is self.together): deepcopy(learner)
            .to(torch.double if double else torch.float)
            .eval()
            .requires_grad_(False)
            for double in (False, True)
            for learner in (self.inductive, self.together)
        }


def save_prior(
    path: Path,
    inductive: MetaLearner,
    together: MetaLearner,
    trust: TrustPrior,
    training: dict[str, Any],
    *,
    votes: Votes = "e3bm",
) -> None:
    """Write a prior; the file is whole or absent."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        "votes": votes,
        "epochs": inductive.epochs,
        "epochs_together": together.epochs,
        "trust": trust.as_json(),
        "training": training,
    }
    tensors = {
        f"{part}.{name}": value.float().contiguous()
        for part, learner in (("inductive", inductive), ("together", together))
        for name, value in learner.state_dict().items()
    }
    write_bytes(path, tensor_file(tensors, {ABOUT: json.dumps(about, sort_keys=True)}))


@cache
def load_prior(path: Path | None = None, *kinds: str) -> FewShotPrior:
    """The shipped prior, or one of a file.

    Of ``kinds`` of features the first with numbers of trust of its own gets these; without one they are those of
    photos. A prior of a file has its own numbers for all kinds.
    """
    if path is None and kinds:
        prior, by_kind = load_prior(), read_json(TRUST_BY_KIND)["trust"]
        own = [by_kind[kind] for kind in kinds if kind in by_kind]
        return replace(prior, trust=TrustPrior.from_json(own[0])) if own else prior
    place = path or SHIPPED
    if not place.exists():
        raise no_prior(place)
    texts, tensors = read_tensor_file(place, "prior", former=place != SHIPPED)
    try:
        about = dict(parse_json(texts.get(ABOUT, "{}")))
    except (ValueError, TypeError):
        about = {}
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise CheckpointError(
            f"{place} is not a prior for few-shot classifiers of version {VERSION}; make one with `e3bm train-prior`."
        )
    try:
        inductive = build_prior(about["votes"], epochs=about["epochs"])
        together = build_batch_prior(inductive, epochs=about["epochs_together"])
        trust, training = TrustPrior.from_json(about["trust"]), dict(about["training"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{place} cannot be used as a prior: something in it is missing or wrong ({error})."
        ) from None
    for name, learner in (("inductive", inductive), ("together", together)):
        _fill(learner, tensors, f"{name}.", place)
    return FewShotPrior(inductive, together, trust, training, sha256(place.read_bytes()).hexdigest())


def kinds_with_trust() -> tuple[str, ...]:
    """Kinds of features that have numbers of trust, photos among them."""
    return tuple(sorted([*read_json(TRUST_BY_KIND)["trust"], PHOTOS]))


def _fill(learner: MetaLearner, tensors: dict[str, Tensor], prefix: str, place: Path) -> None:
    found = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    if not all(value.dtype == torch.float32 and bool(torch.isfinite(value).all()) for value in found.values()):
        raise CheckpointError(f"The numbers of {place} do not fit a prior: they are not finite float32.")
    try:
        learner.load_state_dict(found)
    except RuntimeError as error:
        raise CheckpointError(f"The numbers of {place} do not fit a prior: {misfit(error)}") from None
