"""Backbone rows: ResNet-12 features as tests compute them against plain NCHW in grad mode, and the share of sgemm."""

import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.backbone_reference import PlainResNet12
from benchmarks.machine import sgemm_flops
from benchmarks.rows import Row, Table
from benchmarks.timing import Work, compare, taking_turns
from e3bm.backbones import Backbone, build, encode, fold_batchnorm

IMAGE_SIZE, IMAGES = 84, 16
SPEED, SHARE = 1.5, 0.75


def backbone(image_size: int = IMAGE_SIZE, width: float = 1.0) -> Backbone:
    """ResNet-12 with running statistics that are not the trivial ones."""
    torch.manual_seed(0)
    network = build("resnet12", image_size=image_size, width=width).eval()
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    return network


def reference(ours: Backbone) -> PlainResNet12:
    """The plain network with the same weights."""
    weights = {name: value.contiguous() for name, value in ours.state_dict().items()}
    widths = tuple(weights[f"blocks.{block}.shortcut.conv.weight"].shape[0] for block in range(4))
    plain = PlainResNet12(widths).to(next(iter(weights.values())).dtype)
    plain.load_state_dict(weights)
    return plain.eval()


def our_features(ours: Backbone) -> Callable[[Tensor], Tensor]:
    """Features as `e3bm test` computes them: channels last, BatchNorm folded, inference mode."""
    folded = fold_batchnorm(ours)

    def features(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return encode(folded, images.unsqueeze(0), "running").squeeze(0)

    return features


def steps_between(ours: Backbone, images: Tensor) -> dict[str, Work]:
    """From the plain network to ours, one change at a time."""
    plain, last = reference(ours), reference(ours).to(memory_format=torch.channels_last)
    innermost = images.contiguous(memory_format=torch.channels_last)
    features = our_features(ours)
    return {
        "NCHW, grad mode": lambda: plain(images),
        "NCHW, no grad": torch.no_grad()(lambda: plain(images)),
        "channels last, grad mode": lambda: last(innermost),
        "channels last, no grad": torch.no_grad()(lambda: last(innermost)),
        "this package: + folded, inference mode": lambda: features(images),
    }


def multiplications(network: PlainResNet12, image_size: int) -> float:
    """Floating-point operations for one image, a multiply-add counted as two."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.rand(1, 3, image_size, image_size))
    return float(counter.get_total_flops())


def rows(quick: bool) -> list[Row]:
    """Speed against the plain network, and the share of a matrix product's speed."""
    size = 32 if quick else IMAGE_SIZE
    ours, images = backbone(size), torch.rand(IMAGES, 3, size, size)
    plain, features = reference(ours), our_features(ours)
    before = sgemm_flops()
    result = compare(lambda: plain(images), lambda: features(images), repeats=3 if quick else 5, fast_calls=1)
    peak = statistics.mean([before, sgemm_flops()])
    reached = multiplications(plain, size) * IMAGES / (result.fast_ms / 1e3)
    return [
        Row.of(f"ResNet-12 features, {size} px, {IMAGES} images: against NCHW in grad mode", result, SPEED),
        Row.at_least(
            f"ResNet-12 features, {size} px: share of sgemm", reached / 1e9, peak / 1e9, SHARE, "GFLOP/s",
            spread=result.spread,
        ),
    ]  # fmt: skip


def tables(quick: bool) -> list[Table]:
    """What each change gives."""
    lines: list[tuple[str | float, ...]] = []
    for size in (32,) if quick else (32, IMAGE_SIZE):
        ours, images = backbone(size), torch.rand(IMAGES, 3, size, size)
        work = multiplications(reference(ours), size) * IMAGES
        times = taking_turns(steps_between(ours, images), 1 if quick else 3)
        peak = sgemm_flops()
        medians = {name: statistics.median(found) for name, found in times.items()}
        first = medians["NCHW, grad mode"]
        lines += [
            (f"{size} px", name, 1e3 * seconds / IMAGES, first / seconds, work / seconds / peak)
            for name, seconds in medians.items()
        ]
    about = (
        f"ResNet-12, {IMAGES} images per call, one thread; the share is that of this machine's sgemm in the same run."
    )
    columns = ("images", "form", "ms an image", "times faster", "share of sgemm")
    return [Table("Backbone, one change at a time", about, columns, tuple(lines))]
