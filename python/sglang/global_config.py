"""Settings of the frontend, under the module name that upstream's programs import.

An import of a submodule makes it an attribute of its package. So this module replaces itself by
the settings: ``sglang.global_config`` is the same object however it is reached.
"""

import sys

from sglang.backend.global_settings import global_config

__all__ = ["global_config"]

sys.modules[__name__] = global_config  # type: ignore[assignment]
