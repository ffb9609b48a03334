"""``RuntimeEndpoint`` and ``Runtime`` under upstream's module name."""

from sglang.backend.engine.launched_runtime import Runtime
from sglang.backend.native.endpoint import RuntimeEndpoint

__all__ = ["Runtime", "RuntimeEndpoint"]
