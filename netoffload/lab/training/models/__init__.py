"""The models by their names. Every module in this package is registered.

A module has one ``SPEC``, or ``SPECS`` if one definition makes several models. Sizes are those of the papers:
``test_training_models.py`` compares each with its paper or the implementation that the paper names. All
are plain torch, without torchvision: PyPI's wheels of it do not load beside torch's wheels for CPUs.

A module imports torch only inside ``build``, so the command line gets the names without waiting for torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from netoffload.config import check_choice
from netoffload.lab.training.model_spec import ModelSpec


def _specs() -> dict[str, ModelSpec]:
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    specs: list[ModelSpec] = [spec for module in modules for spec in getattr(module, "SPECS", None) or (module.SPEC,)]
    names = [spec.name for spec in specs]
    assert len(set(names)) == len(names), f"two models have one name: {names}"
    return dict(zip(names, specs, strict=True))


MODELS: Final = _specs()


def get(name: str) -> ModelSpec:
    """Return a model by its name."""
    check_choice("model", name, tuple(MODELS))
    return MODELS[name]
