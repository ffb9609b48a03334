"""``RuntimeEndpoint`` and ``Runtime`` under upstream's module name."""

from sglang.backend.endpoint import RuntimeEndpoint
from sglang.backend.runtime import Runtime

__all__ = ["Runtime", "RuntimeEndpoint"]
