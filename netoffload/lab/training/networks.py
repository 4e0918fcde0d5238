"""The networks of ``models``, in plain torch, and the layers that they have beside torch's own.

**Initialisation.** Compressed training needs He initialisation (normal, mean 0, variance 2 / inputs; biases 0). With
torch's default (uniform, variance 1 / (3 inputs)) the gradients of HDC start below 2^-7. The paper's 8-bit form decodes
such values to 0, and compressed training never leaves chance level. With He initialisation it learns. So it does with a
loss scale, by which gradients are multiplied before they travel.

Networks over sequences take tokens, int64[batch, length], and return float32[batch, length, classes]. The output at a
place predicts the next token, and does not depend on later ones.

torchvision is not used: PyPI's wheels of it do not load beside torch's wheels for CPUs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from netoffload.lab.training.data_spec import SampleShape, Shape, Tokens


class LinearInPlace(torch.autograd.Function):
    """A fully connected layer whose backward pass writes the gradients of weight and bias into given memory.

    Autograd would make them in new memory (whose pages the kernel must clear) and then add them to the flat buffer.
    That takes a quarter of HDC's time per batch.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layer: FullyConnected
    ) -> torch.Tensor:
        """Return inputs · weightᵀ + bias, float32[batch, outputs]."""
        ctx.save_for_backward(inputs, weight)
        ctx.layer = layer
        return torch.addmm(bias, inputs, weight.t())

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        """Overwrite both gradients, and return the gradient of the inputs if autograd needs it.

        torch calls the hooks of weight and bias after this, although it has nothing to add to their gradients.
        """
        (outward,) = output_gradients
        inputs, weight = ctx.saved_tensors
        layer = ctx.layer
        torch.mm(outward.t(), inputs, out=layer.weight.grad)
        torch.sum(outward, 0, out=layer.bias.grad)
        return (outward.mm(weight) if ctx.needs_input_grad[0] else None), None, None, None


class FullyConnected(nn.Linear):
    """``nn.Linear`` that overwrites ``weight.grad`` and ``bias.grad``, if they exist, instead of adding to them."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs · weightᵀ + bias, float32[batch, outputs]."""
        if self.weight.grad is None:  # as under DDP, whose hooks must see every gradient
            return super().forward(inputs)
        outputs: torch.Tensor = LinearInPlace.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, self.bias, self
        )
        return outputs


class LocallyConnected(nn.Module):
    """A convolution of 3x3 whose weights differ at every place (Krizhevsky's cuda-convnet: ``local``)."""

    def __init__(self, inputs: int, outputs: int, side: int) -> None:
        """Take ``inputs`` planes of ``side`` x ``side``, padded with zeros; weights are not initialised."""
        super().__init__()
        self.side = side
        self.weight = nn.Parameter(torch.empty(side * side, outputs, 9 * inputs))
        self.bias = nn.Parameter(torch.empty(outputs, side * side))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return float32[batch, outputs, side, side]."""
        patches = functional.unfold(inputs, 3, padding=1)
        outputs: torch.Tensor = torch.einsum("bip,poi->bop", patches, self.weight) + self.bias
        return outputs.view(-1, len(self.bias), self.side, self.side)


class Residual(nn.Module):
    """ReLU of the sum of a body and its shortcut."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        """Take a body and a shortcut whose outputs have the same shape."""
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ReLU of the sum."""
        return functional.relu(self.body(inputs) + self.shortcut(inputs), inplace=True)


class Branches(nn.ModuleList):
    """Branches with the same inputs, whose outputs are concatenated plane by plane."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return all their planes."""
        return torch.cat([branch(inputs) for branch in self], 1)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution without bias, which keeps the side except for its stride, and its batch normalisation."""
    padding = kernel // 2
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs)]


def _active(*layers: nn.Module) -> list[nn.Module]:
    """Return layers with a ReLU behind each."""
    return [each for layer in layers for each in (layer, nn.ReLU(inplace=True))]


def _images(shape: Shape) -> nn.Unflatten:
    """Return the layer that turns float32[batch, features] into float32[batch, channels, side, side]."""
    return nn.Unflatten(1, (shape.channels, shape.side, shape.side))


def alexnet(shape: Shape) -> nn.Sequential:
    """AlexNet in its form for one device (Krizhevsky, 2014), as torchvision has it too."""
    layers: list[nn.Module] = [_images(shape), *_active(nn.Conv2d(shape.channels, 64, 11, stride=4, padding=2))]
    layers += [nn.MaxPool2d(3, 2), *_active(nn.Conv2d(64, 192, 5, padding=2)), nn.MaxPool2d(3, 2)]
    for inputs, outputs in itertools.pairwise((192, 384, 256, 256)):
        layers += _active(nn.Conv2d(inputs, outputs, 3, padding=1))
    layers += [nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6), nn.Flatten()]
    for inputs in (256 * 6 * 6, 4096):
        layers += [nn.Dropout(0.5), *_active(FullyConnected(inputs, 4096))]
    return nn.Sequential(*layers, FullyConnected(4096, shape.classes))


def cifarnet(shape: Shape) -> nn.Sequential:
    """CifarNet of the TernGrad paper (4.1): the network of TensorFlow's CIFAR-10 tutorial, on the middle 24x24 values.

    The paper names the network and the crop, but not the layers. It draws the place of the crop at random, mirrors
    images and changes their brightness; here the crop is the middle.
    """
    crop = 24
    before = (shape.side - crop) // 2
    after = shape.side - crop - before
    return nn.Sequential(
        _images(shape),
        nn.ZeroPad2d((-before, -after, -before, -after)),
        *_active(nn.Conv2d(shape.channels, 64, 5, padding=2)),
        *(nn.MaxPool2d(3, 2, padding=1), nn.LocalResponseNorm(9, 0.009, 0.75)),
        *_active(nn.Conv2d(64, 64, 5, padding=2)),
        *(nn.LocalResponseNorm(9, 0.009, 0.75), nn.MaxPool2d(3, 2, padding=1), nn.Flatten()),
        *_active(FullyConnected(64 * (crop // 4) ** 2, 384), FullyConnected(384, 192)),
        nn.Linear(192, shape.classes),
    )


def cnn(shape: Shape) -> nn.Sequential:
    """Three convolutions of 3x3 and two fully connected layers, which four workers train on two cores."""
    layers: list[nn.Module] = [_images(shape)]
    for inputs, outputs in itertools.pairwise((shape.channels, 32, 64, 64)):
        layers += [*_active(nn.Conv2d(inputs, outputs, 3, padding=1)), nn.MaxPool2d(2)]
    side = shape.side // 2 // 2 // 2
    return nn.Sequential(*layers, nn.Flatten(), *_active(nn.Linear(64 * side * side, 64)), nn.Linear(64, shape.classes))


def dettmers_mnist(shape: Shape) -> nn.Sequential:
    """The perceptron 784x1024x1024x10 of Dettmers' 8-bit paper (3.2)."""
    layers: list[nn.Module] = [nn.Dropout(0.2)]
    for inputs, outputs in itertools.pairwise((shape.features, 1024, 1024)):
        layers += [*_active(FullyConnected(inputs, outputs)), nn.Dropout(0.3)]
    return nn.Sequential(*layers, FullyConnected(1024, shape.classes))


def dettmers_cifar(shape: Shape) -> nn.Sequential:
    """The network of Dettmers' 8-bit paper (3.2) for CIFAR-10, which names the filters of the convolutions.

    The filters of the locally connected layers, 64 and 32 of 3x3, and the normalisation come from cuda-convnet's
    network, which it cites.
    """
    half = -(-shape.side // 2)
    side = -(-half // 2)
    return nn.Sequential(
        _images(shape),
        *_active(nn.Conv2d(shape.channels, 64, 5, padding=2)),
        *(nn.MaxPool2d(3, 2, padding=1), nn.LocalResponseNorm(9, 0.001, 0.75)),
        *_active(nn.Conv2d(64, 64, 3, padding=1)),
        *(nn.MaxPool2d(3, 2, padding=1), nn.LocalResponseNorm(9, 0.001, 0.75)),
        *_active(LocallyConnected(64, 64, side), LocallyConnected(64, 32, side)),
        *(nn.Flatten(), FullyConnected(32 * side * side, shape.classes)),
    )


MODULES: Final = (
    *((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None),
    *((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64)),
    *((112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), None),
    *((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Maps of GoogLeNet's modules: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; behind the pooling. None: a pooling."""


def googlenet(shape: Shape) -> nn.Sequential:
    """GoogLeNet (Szegedy et al., 2014, Table 1) as the TernGrad paper trains it (4.2).

    Every convolution has batch normalisation, and there are no auxiliary classifiers.
    """

    def active(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        return [*_convolution(inputs, outputs, kernel, stride), nn.ReLU(inplace=True)]

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    layers: list[nn.Module] = [_images(shape), *active(shape.channels, 64, 7, 2), pool()]
    layers += [*active(64, 64, 1), *active(64, 192, 3), pool()]
    inputs = 192
    for module in MODULES:
        if module is None:
            layers.append(pool())
            continue
        ones, reduce3, threes, reduce5, fives, pooled = module
        branches = (
            active(inputs, ones, 1),
            [*active(inputs, reduce3, 1), *active(reduce3, threes, 3)],
            [*active(inputs, reduce5, 1), *active(reduce5, fives, 5)],
            [nn.MaxPool2d(3, 1, padding=1), *active(inputs, pooled, 1)],
        )
        layers.append(Branches(nn.Sequential(*branch) for branch in branches))
        inputs = ones + threes + fives + pooled
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inputs, shape.classes)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    """A block of a transformer: attention to earlier places, then a layer of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_widening = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.widening_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """Return the stream, float32[batch, length, width], with what the block adds."""
        split = self.query_key_value(self.before_attention(stream)).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attention_out(seen.transpose(1, 2).flatten(-2))
        widened: torch.Tensor = self.widening_out(functional.gelu(self.widen(self.before_widening(stream))))
        return stream + widened


class Transformer(nn.Module):
    """A small GPT (Radford et al., 2019) of characters: four blocks of 128 values with four heads.

    Normalisation comes before each part of a block. The embedding of tokens is also the weight of the output.
    """

    blocks_count, width, heads = 4, 128, 4

    def __init__(self, shape: Tokens) -> None:
        super().__init__()
        width = self.width
        self.tokens, self.places = nn.Embedding(shape.classes, width), nn.Embedding(shape.length, width)
        self.blocks = nn.Sequential(*(Block(width, self.heads) for _ in range(self.blocks_count)))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the guesses, float32[batch, length, classes]."""
        stream = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return functional.linear(self.last(self.blocks(stream)), self.tokens.weight)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights; the more blocks add to the residual stream, the smaller their last weights are drawn."""
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                deviation = 0.02 / (math.sqrt(2 * self.blocks_count) if name.endswith("out") else 1)
                nn.init.normal_(layer.weight, 0.0, deviation, generator)
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)


def hdc(_shape: Shape) -> nn.Sequential:
    """HDC of the INCEPTIONN paper (VII-A): five fully connected layers, hidden size 500, for handwritten digits."""
    layers = [FullyConnected(*sides) for sides in itertools.pairwise((784, 500, 500, 500, 500, 10))]
    return nn.Sequential(*_active(*layers)[:-1])


def lenet5(shape: Shape) -> nn.Sequential:
    """LeNet-5 (LeCun et al., 1998, II-B), which the TernGrad paper trains on MNIST (4.1).

    Its third layer sees all maps of the second. ReLU, maximum pooling and softmax replace the original's functions.
    """
    after = ((shape.side - shape.side % 2) // 2 - 4) // 2 - 4  # of the third convolution's maps
    return nn.Sequential(
        _images(shape),
        *(*_active(nn.Conv2d(shape.channels, 6, 5, padding=2)), nn.MaxPool2d(2)),
        *(*_active(nn.Conv2d(6, 16, 5)), nn.MaxPool2d(2)),
        *(*_active(nn.Conv2d(16, 120, 5)), nn.Flatten()),
        *(*_active(nn.Linear(120 * after * after, 84)), nn.Linear(84, shape.classes)),
    )


class CharacterLstm(nn.Module):
    """Layers of LSTM (Jiang and Agrawal, 5: five with 800 units each) as a model of characters.

    The paper trains it on the speech of AN4. Here an embedding replaces the sound's features, and a fully connected
    layer predicts the next character. Every sequence begins with a state of zeros.
    """

    def __init__(self, shape: Tokens, units: int = 800, layers: int = 5) -> None:
        super().__init__()
        self.units = units
        self.embed = nn.Embedding(shape.classes, units)
        self.recur = nn.LSTM(units, units, layers, batch_first=True)
        self.guess = nn.Linear(units, shape.classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the guesses, float32[batch, length, classes]."""
        guesses: torch.Tensor = self.guess(self.recur(self.embed(tokens))[0])
        return guesses

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights as torch initialises an LSTM."""
        bound = 1 / math.sqrt(self.units)
        for tensor in self.parameters():
            nn.init.uniform_(tensor, -bound, bound, generator)


def nin(shape: Shape) -> nn.Sequential:
    """Network in Network for ImageNet, as Caffe's model zoo has it: the network of the thresholds' paper (section 3).

    That paper counts 60,719,360 gradients of eight nodes per iteration: eight times its weights without biases.
    """

    def stage(first: nn.Conv2d, maps: int, outputs: int) -> list[nn.Module]:
        return _active(first, nn.Conv2d(maps, maps, 1), nn.Conv2d(maps, outputs, 1))

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        _images(shape),
        *(*stage(nn.Conv2d(shape.channels, 96, 11, stride=4), 96, 96), pool()),
        *(*stage(nn.Conv2d(96, 256, 5, padding=2), 256, 256), pool()),
        *(*stage(nn.Conv2d(256, 384, 3, padding=1), 384, 384), pool(), nn.Dropout(0.5)),
        *stage(nn.Conv2d(384, 1024, 3, padding=1), 1024, shape.classes),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


def resnet(
    counts: tuple[int, ...], shape: Shape, *, has_bottlenecks: bool = False, is_small: bool = False
) -> nn.Module:
    """A ResNet (He et al., 2015) with ``counts`` blocks in each stage: for ImageNet, as torchvision has it too.

    Shortcuts that change the size are projections. The stride of a bottleneck is in its 3x3 convolution. The small ones
    for CIFAR-10 (4.2) are those that Jiang and Agrawal train (5.1). Their shortcuts have no parameters: they take every
    second value, and planes of zeros for new maps.
    """
    width = 16 if is_small else 64
    stem = _convolution(shape.channels, width, 3) if is_small else _convolution(shape.channels, width, 7, 2)
    layers: list[nn.Module] = [_images(shape), *stem, nn.ReLU(inplace=True)]
    if not is_small:
        layers.append(nn.MaxPool2d(3, 2, padding=1))
    inputs = width
    for stage, count in enumerate(counts):
        maps = width << stage
        outputs = 4 * maps if has_bottlenecks else maps
        for number in range(count):
            stride = 2 if stage and not number else 1
            kernels: tuple[tuple[int, int, int], ...] = ((maps, 3, stride), (maps, 3, 1))
            if has_bottlenecks:
                kernels = ((maps, 1, 1), (maps, 3, stride), (outputs, 1, 1))
            body: list[nn.Module] = []
            before = inputs
            for after, kernel, step in kernels:
                body += [*_convolution(before, after, kernel, step), nn.ReLU(inplace=True)]
                before = after
            shortcut: nn.Module = nn.Identity()
            if is_small and stride != 1:
                half = (outputs - inputs) // 2
                shortcut = nn.Sequential(nn.AvgPool2d(1, 2), nn.ConstantPad3d((0, 0, 0, 0, half, half), 0.0))
            elif stride != 1 or inputs != outputs:
                shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride))
            layers.append(Residual(nn.Sequential(*body[:-1]), shortcut))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, shape.classes))


def vgg16(shape: Shape, *, is_small: bool = False) -> nn.Sequential:
    """VGG-16 (Simonyan and Zisserman, 2014, configuration D) for ImageNet, or the small form for CIFAR-10.

    The small form has batch normalisation and one fully connected layer. Jiang and Agrawal (5) name VGG, but no layers.
    """
    layers: list[nn.Module] = [_images(shape)]
    inputs = shape.channels
    for outputs, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            layers += [nn.BatchNorm2d(outputs)] if is_small else []
            layers.append(nn.ReLU(inplace=True))
            inputs = outputs
        layers.append(nn.MaxPool2d(2, ceil_mode=is_small))
    layers += [nn.AdaptiveAvgPool2d(1 if is_small else 7), nn.Flatten()]
    if is_small:
        return nn.Sequential(*layers, nn.Linear(512, shape.classes))
    for inputs in (512 * 7 * 7, 4096):
        layers += [*_active(FullyConnected(inputs, 4096)), nn.Dropout(0.5)]
    return nn.Sequential(*layers, FullyConnected(4096, shape.classes))


NETWORKS: Final[dict[str, Callable[[Any], nn.Module]]] = {
    "alexnet": alexnet,
    "cifarnet": cifarnet,
    "cnn": cnn,
    "dettmers-mnist": dettmers_mnist,
    "dettmers-cifar": dettmers_cifar,
    "googlenet": googlenet,
    "gpt": Transformer,
    "hdc": hdc,
    "lenet5": lenet5,
    "lstm": CharacterLstm,
    "nin": nin,
    "resnet18": functools.partial(resnet, (2, 2, 2, 2)),
    "resnet50": functools.partial(resnet, (3, 4, 6, 3), has_bottlenecks=True),
    "resnet152": functools.partial(resnet, (3, 8, 36, 3), has_bottlenecks=True),
    "resnet20": functools.partial(resnet, (3, 3, 3), is_small=True),
    "resnet32": functools.partial(resnet, (5, 5, 5), is_small=True),
    "resnet110": functools.partial(resnet, (18, 18, 18), is_small=True),
    "vgg16": vgg16,
    "vgg16-cifar": functools.partial(vgg16, is_small=True),
}
"""Of each model the network for samples of a shape."""


def build(name: str, seed: int, shape: SampleShape) -> nn.Module:
    """Return a model's network with the weights of a seed, the same on every rank; on the meta device without any."""
    network = NETWORKS[name](shape)
    if not next(network.parameters()).is_meta:
        generator = torch.Generator().manual_seed(seed)
        if isinstance(network, Transformer | CharacterLstm):
            network.initialise(generator)
        else:
            he_initialise(network, generator)
    return network


def he_initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of every convolution and fully connected layer, in their order; set biases to 0."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | LocallyConnected):
            fan_in = layer.weight.shape[-1] if isinstance(layer, LocallyConnected) else layer.weight[0].numel()
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0) / math.sqrt(fan_in), generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of outputs, float32[batch, classes], and labels, int64[batch].

    Sequences have a dimension for the place behind ``batch``; the mean is then over all places.
    """
    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())
