"""What a fit of photos leaves."""

from dataclasses import dataclass

from e3bm.fewshot.classifier import FittedClassifier
from e3bm.fewshot.support_set import SupportSet


@dataclass(frozen=True)
class SuspiciousPhoto:
    """A labelled photo that the others contradict."""

    name: str
    label: str
    looks_like: str
    odds: float
    """How many times likelier the other class is."""


@dataclass(frozen=True, eq=False)
class FittedPhotos:
    """All that a fit leaves: replaced as a whole, so that a prediction on another thread sees one fit or the other."""

    classes: tuple[str, ...]
    classifier: FittedClassifier
    support: SupportSet | None
    """None where the features were dropped."""
    prior_digest: str
    own_prior: bool
    """Whether the prior is not the one that came with the package."""
    notes: tuple[str, ...] = ()

    def suspicions(self) -> tuple[SuspiciousPhoto, ...]:
        """Doubtful labels by name, the most doubtful first."""
        found = []
        for one in self.classifier.suspicions:
            label = self.classes[one.label]
            first = sum(self.classifier.counts[: one.label])
            name = f"{label} #{one.position - first + 1}" if self.support is None else self.support.names[one.position]
            found.append(SuspiciousPhoto(name, label, self.classes[one.looks_like], one.odds))
        return tuple(found)
