"""An interpreter whose native passes take torch's tensors, as they do for models that need torch.
Python imports this file at its start where its folder is on PYTHONPATH."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

PLAN = "sglang.srt.worker.model_loading"


class OnTensors(importlib.abc.MetaPathFinder):
    """Says of every plan of a model that it is not for NumPy's arrays alone."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != PLAN:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def changed(module: ModuleType) -> None:
            execute(module)
            module.ModelPlan.on_host = property(lambda plan: False)

        spec.loader.exec_module = changed  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, OnTensors())
