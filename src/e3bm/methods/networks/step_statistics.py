"""Whose BatchNorm statistics a pass of MAML uses, and where its own go.

``batch``: each pass normalises by its own images; queries then see one another, which is transductive in fact.
``running``: one set of running statistics, moved in training by the support passes.
``batch_then_running``: as ``batch`` in training, where support passes move the running statistics that tests use.
``per_step``: a set for every number of updates; training normalises by the pass's own images and moves that set.

With ``led`` a pass of the queries belongs to the step that led to it and uses that step's set, as MAML++ numbers them.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from e3bm.errors import SettingsError
from e3bm.methods.networks.functional import TaskNormalisation, normalisations

BatchNorm = Literal["batch", "running", "batch_then_running", "per_step"]
Part = Literal["support", "query"]


def step_of(part: Part, updates: int) -> int:
    """The inner step that a pass belongs to: the support's pass comes before its update, that of the queries after."""
    return updates if part == "support" else max(updates - 1, 0)


class StepStatistics(nn.Module):
    """The mode, and in ``per_step`` the running statistics after 0..M updates, or ``led`` by step 0..M-1."""

    def __init__(self, mode: BatchNorm, backbone: nn.Module, epochs: int | None, *, led: bool = False) -> None:
        super().__init__()
        if mode not in get_args(BatchNorm):
            raise SettingsError(f"MAML has no BatchNorm mode '{mode}'; known: {', '.join(get_args(BatchNorm))}.")
        if (mode == "per_step") != (epochs is not None):
            raise SettingsError(
                "The number of inner epochs must be given exactly when BatchNorm keeps statistics per step; "
                f"found epochs={epochs} in the mode '{mode}'."
            )
        self.mode: BatchNorm = mode
        self.led = led
        layers = [backbone.get_submodule(name) for name in normalisations(backbone)]
        self.normalises = bool(layers)
        # Copies of the layers, so that whatever collects and applies statistics finds these as well.
        sets = range(0 if epochs is None else epochs + (not led))
        self.steps = nn.ModuleList(nn.ModuleList(_only_statistics(layer) for layer in layers) for _ in sets)

    def open(self, backbone: nn.Module) -> "StatisticsLedger":
        """The statistics for one batch of tasks."""
        if self.mode == "per_step":
            sets = [list(cast(Sequence[TaskNormalisation], step)) for step in self.steps]
        else:
            sets = [list(normalisations(backbone).values())]
        return StatisticsLedger(self.mode, sets, self.training, led=self.led)


class StatisticsLedger:
    """Hands out statistics for the passes of a batch of tasks and sets theirs aside: one entry a task and set.

    A task that passes several times through the same set leaves the mean of its passes.
    """

    def __init__(self, mode: BatchNorm, sets: list[list[TaskNormalisation]], training: bool, *, led: bool) -> None:
        self.mode, self.sets, self.training, self.led = mode, sets, training, led
        self._given: dict[int, tuple[Tensor, ...]] = {}
        self._entries: dict[tuple[int, int], list[Tensor]] = {}
        self._passes: dict[tuple[int, int], set[tuple[Part, int]]] = {}

    def given(self, part: Part, updates: int) -> tuple[Float[Tensor, "2 _"], ...] | None:
        """What a pass of a learner after that many updates is normalised by; None: by the images of the pass."""
        if self.mode == "batch" or (self.training and self.mode != "running"):
            return None
        number = self._number(part, updates)
        if number not in self._given:
            # Copies: statistics may be moved before the backward pass is done with them.
            self._given[number] = tuple(
                torch.stack([layer.running_mean, layer.running_var]) for layer in self.sets[number]
            )
        return self._given[number]

    def observes(self, part: Part) -> bool:
        """Whether a pass leaves its statistics."""
        return self.training and self.mode != "batch" and (part == "support" or self.mode == "per_step")

    def note(self, part: Part, updates: int, task: int, seen: Sequence[Float[Tensor, "2 _"]]) -> None:
        """Set a pass's statistics aside; a pass that is computed again is not counted again."""
        number = self._number(part, updates)
        passes = self._passes.setdefault((number, task), set())
        if (part, updates) in passes:
            return
        passes.add((part, updates))
        if len(passes) > 1:
            for entry, own in zip(self._entries[number, task], seen, strict=True):
                entry.lerp_(own.to(entry), 1 / len(passes))
            return
        self._entries[number, task] = [own.clone() for own in seen]
        for layer, entry in zip(self.sets[number], self._entries[number, task], strict=True):
            layer.pending.append(entry)

    def _number(self, part: Part, updates: int) -> int:
        if self.mode != "per_step":
            return 0
        number = step_of(part, updates) if self.led else updates
        if number >= len(self.sets):
            raise SettingsError(
                f"BatchNorm keeps statistics for {len(self.sets) - (not self.led)} inner epochs but epoch "
                f"{number + self.led} was asked for; train and test with the same number, or use another BatchNorm "
                "mode."
            )
        return number


def _only_statistics(layer: nn.Module) -> nn.Module:
    copy = deepcopy(layer)
    assert isinstance(copy, _BatchNorm)
    copy.affine = False
    copy.register_parameter("weight", None)
    copy.register_parameter("bias", None)
    return copy
