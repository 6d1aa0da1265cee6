"""What must not be two images of one class, nor two classes: repeats and look-alikes, both by measurement."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Drawings = Mapping[int, np.ndarray]  # typeface number -> [28, 28] grey levels

FEWEST_TYPEFACES, MOST_TYPEFACES = 20, 100
SAME_FORM = 0.10  # two drawings that differ in less than this share of their ink count as one form
LARGEST_SAME_FORM_SHARE = 0.06  # of the typefaces that draw both characters
SMALLEST_SEPARABILITY = 0.95
RELATED_MEANS = 0.75  # cosine of two mean images, below which the pair needs no look
FOLDS, RIDGE = 5, 3.0


@dataclass(frozen=True)
class LeftOut:
    """A character that is no class of its own because it looks like one."""

    character: str
    looks_like: str
    same_form_share: float
    separability: float | None


def ink_distances(one: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """The ink that only one of two drawings has, as a share of the ink of both: 0 equal, 1 disjoint."""
    if not others:
        return np.empty(0)
    stack = np.stack(others)
    common = np.minimum(stack, one).sum(axis=(1, 2), dtype=np.int64)
    together = stack.sum(axis=(1, 2), dtype=np.int64) + int(one.sum(dtype=np.int64))
    return (together - 2 * common) / (together - common)


def without_repeats(drawings: Drawings) -> dict[int, np.ndarray]:
    """A class without drawings that are (nearly) there already: families often share the forms of a relative."""
    kept: dict[int, np.ndarray] = {}
    for typeface in sorted(drawings, key=_drawn_lot):
        if (ink_distances(drawings[typeface], list(kept.values())) >= SAME_FORM).all():
            kept[typeface] = drawings[typeface]
    return kept


def choose_classes(drawn: Mapping[str, Drawings]) -> tuple[dict[str, Drawings], list[LeftOut]]:
    """Walks through the characters in order and keeps those that look like none kept before."""
    kept: dict[str, Drawings] = {}
    means: dict[str, np.ndarray] = {}
    left_out: list[LeftOut] = []
    for character, drawings in drawn.items():
        if len(drawings) < FEWEST_TYPEFACES:
            continue
        mean = np.mean([drawing.ravel() for drawing in drawings.values()], axis=0)
        mean = mean / np.linalg.norm(mean)
        related = [other for other in kept if float(mean @ means[other]) >= RELATED_MEANS]
        twin = next((found for other in related if (found := _twin(character, other, drawings, kept[other]))), None)
        if twin:
            left_out.append(twin)
        else:
            kept[character], means[character] = drawings, mean
    return kept, left_out


def without_shared_forms(
    drawn: Mapping[str, Drawings], classes: Mapping[str, Drawings], left_out: Sequence[LeftOut]
) -> dict[str, Drawings]:
    """Where a typeface draws two characters alike, the form belongs to the first, or to the class that it looks like.

    This finds typefaces that offer a plain l for a script l, or a capital for a small letter.
    """
    owners = dict(zip(classes, classes, strict=True)) | {each.character: each.looks_like for each in left_out}
    cleaned: dict[str, dict[int, np.ndarray]] = {character: {} for character in classes}
    forms: dict[int, list[np.ndarray]] = {}
    form_owners: dict[int, list[str]] = {}
    everywhere: set[bytes] = set()
    for character in filter(owners.__contains__, drawn):  # the order of precedence
        owner = owners[character]
        for typeface, drawing in drawn[character].items():
            alike = ink_distances(drawing, forms.setdefault(typeface, [])) < SAME_FORM
            holders = {form_owners[typeface][place] for place in np.flatnonzero(alike)}
            forms[typeface].append(drawing)
            form_owners.setdefault(typeface, []).append(owner)
            if character in classes and holders <= {owner} and drawing.tobytes() not in everywhere:
                cleaned[character][typeface] = drawing
                everywhere.add(drawing.tobytes())
    return cleaned


def limited(character: str, drawings: Drawings) -> dict[int, np.ndarray]:
    """At most MOST_TYPEFACES of a class, by a lot of its own so that all typefaces appear, in the list's order."""
    chosen = sorted(drawings, key=lambda typeface: _drawn_lot(typeface, character))[:MOST_TYPEFACES]
    return {typeface: drawings[typeface] for typeface in sorted(chosen)}


def separability(one: Drawings, other: Drawings) -> float:
    """Balanced accuracy of a linear classifier between two characters on typefaces it has not seen."""
    groups = np.array([*one, *other]) % FOLDS
    pixels = np.stack([drawing.ravel() for drawing in (*one.values(), *other.values())]) / 15.0
    signs = np.repeat([1.0, -1.0], [len(one), len(other)])
    shares = np.repeat([0.5 / len(one), 0.5 / len(other)], [len(one), len(other)])
    gram = pixels @ pixels.T + 1.0
    penalty = RIDGE / (shares * len(signs))  # both characters weigh the same however many typefaces draw them
    right = np.zeros(len(signs))
    for fold in range(FOLDS):
        seen, unseen = np.flatnonzero(groups != fold), np.flatnonzero(groups == fold)
        fitted = np.linalg.solve(gram[np.ix_(seen, seen)] + np.diag(penalty[seen]), signs[seen])
        right[unseen] = np.sign(gram[np.ix_(unseen, seen)] @ fitted) == signs[unseen]
    return float(shares @ right)


def _twin(character: str, other: str, drawings: Drawings, others: Drawings) -> LeftOut | None:
    shared = [face for face in drawings if face in others]
    distances = np.array([ink_distances(drawings[face], [others[face]])[0] for face in shared])
    same_form_share = float((distances < SAME_FORM).mean()) if len(distances) else 0.0
    if same_form_share > LARGEST_SAME_FORM_SHARE:
        return LeftOut(character, other, round(same_form_share, 3), None)
    accuracy = separability(drawings, others)
    if accuracy < SMALLEST_SEPARABILITY:
        return LeftOut(character, other, round(same_form_share, 3), round(accuracy, 3))
    return None


def _drawn_lot(typeface: int, character: str = "") -> str:
    # A fixed order that follows neither the alphabet nor the families.
    return hashlib.sha256(f"{character} {typeface}".encode()).hexdigest()
