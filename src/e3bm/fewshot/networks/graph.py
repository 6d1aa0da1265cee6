"""A folded EfficientNet-Lite as an ONNX graph from images to features, in single precision or in 8-bit integers.

In 8 bits every number of a map between two convolutions is a byte, with the range that calibration photos gave the map
(int8_ranges.json, written by scripts/measure_networks.py); weights are bytes with a scale for each channel, sums are
32-bit integers. The graph says so by pairs of QuantizeLinear and DequantizeLinear, from which onnxruntime makes
convolutions of integers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

OPSET, IR_VERSION = 18, 10
MOST_UNITS, TINY = 2.0**30, 1e-20
"""How large the integer of a bias may be, and the smallest scale."""
Range = tuple[float, float]


def network_graph(onnx: Any, module: Any, ranges: Sequence[Range] | None = None) -> bytes:
    """The graph; with ``ranges`` of all maps in their order, beginning with the images, it is in 8 bits."""
    writer = _Writer(onnx) if ranges is None else _ByteWriter(onnx, ranges)
    maps = writer.convolution(writer.kept("images", clipped=False), module.stem, clipped=True)
    for block in module.blocks:
        wide = writer.convolution(maps, block.widen, clipped=True) if block.widens else maps
        narrow = writer.convolution(writer.convolution(wide, block.filter, clipped=True), block.narrow, clipped=False)
        maps = writer.kept(writer.node("Add", narrow, maps), clipped=False) if block.adds else narrow
    pooled = writer.node("GlobalAveragePool", writer.convolution(maps, module.head, clipped=True))
    writer.nodes.append(onnx.helper.make_node("Flatten", [pooled], ["features"], name="features"))
    value = lambda name, shape: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph(
        writer.nodes,
        "features",
        [value("images", ["batch", module.channels, "height", "width"])],
        [value("features", ["batch", module.feature_size])],
        [onnx.numpy_helper.from_array(np.array(each), name) for name, each in writer.constants.items()],
    )
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, producer_name="e3bm", opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    found: bytes = model.SerializeToString()
    return found


class _Writer:
    """The nodes and constants of a graph in single precision."""

    def __init__(self, onnx: Any) -> None:
        self.onnx, self.nodes = onnx, list[Any]()
        self.constants: dict[str, np.ndarray] = {}

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(values)
        return name

    def convolution(self, maps: str, padded: Any, *, clipped: bool) -> str:
        """A convolution, and the clipping to 0..6 behind it."""
        conv = padded.conv
        left, right, top, bottom = getattr(padded.padding, "padding", (0, 0, 0, 0))
        weight, bias = self.parameters(maps, conv.weight.detach().numpy(), conv.bias.detach().numpy())
        found = self.node(
            "Conv", maps, weight, bias, strides=list(conv.stride), group=conv.groups, pads=[top, left, bottom, right],
            kernel_shape=list(conv.kernel_size),
        )  # fmt: skip
        return self.kept(found, clipped=clipped)

    def parameters(self, maps: str, weight: np.ndarray, bias: np.ndarray) -> tuple[str, str]:
        """The weights and the bias of a convolution of these maps."""
        return self.constant(weight), self.constant(bias)

    def kept(self, maps: str, *, clipped: bool) -> str:
        """Maps as the next layer gets them."""
        if not clipped:
            return maps
        return self.node("Clip", maps, self.constant(np.float32(0)), self.constant(np.float32(6)))


class _ByteWriter(_Writer):
    """The same in 8 bits."""

    def __init__(self, onnx: Any, ranges: Sequence[Range]) -> None:
        super().__init__(onnx)
        self.ranges, self.scales = iter(ranges), dict[str, np.float32]()

    def parameters(self, maps: str, weight: np.ndarray, bias: np.ndarray) -> tuple[str, str]:
        finest = np.abs(bias) / (self.scales[maps] * MOST_UNITS)  # of a channel that is hardly more than its bias
        scale = np.maximum(np.abs(weight).max((1, 2, 3)) / 127, np.maximum(finest, TINY)).astype(np.float32)
        small = np.rint(weight / scale[:, None, None, None]).astype(np.int8)
        fine = self.scales[maps] * scale
        return self._floats(small, scale), self._floats(np.rint(bias / fine).astype(np.int32), fine)

    def kept(self, maps: str, *, clipped: bool) -> str:
        """Bytes that cover the range; clipping is what happens at its ends."""
        low, high = next(self.ranges)
        low, high = (0.0, min(high, 6.0)) if clipped else (min(low, 0.0), max(high, 0.0))
        scale = np.float32((high - low) / 255 or 1)
        ends = self.constant(scale), self.constant(np.uint8(np.rint(-low / scale)))
        found = self.node("DequantizeLinear", self.node("QuantizeLinear", maps, *ends), *ends)
        self.scales[found] = scale
        return found

    def _floats(self, values: np.ndarray, scale: np.ndarray) -> str:
        zeros = self.constant(np.zeros(len(scale), values.dtype))
        return self.node("DequantizeLinear", self.constant(values), self.constant(scale), zeros, axis=0)
