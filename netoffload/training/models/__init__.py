"""The models by their names: every module of this package has one ``SPEC``, and being here is all that registers it.

A module imports torch inside ``build`` alone, so that the command line knows the names without waiting for torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from netoffload.config import check_choice
from netoffload.training.model_spec import ModelSpec


def _specs() -> dict[str, ModelSpec]:
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    specs: list[ModelSpec] = [module.SPEC for module in modules]
    names = [spec.name for spec in specs]
    assert len(set(names)) == len(names), f"two models have one name: {names}"
    return dict(zip(names, specs, strict=True))


MODELS: Final = _specs()


def get(name: str) -> ModelSpec:
    """Return a model by its name.

    Raises:
        UsageError: no such model.
    """
    check_choice("model", name, tuple(MODELS))
    return MODELS[name]
