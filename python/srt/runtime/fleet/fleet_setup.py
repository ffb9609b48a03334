"""Makes the engines of a server, the fleet of them, and the Completer on it."""

from __future__ import annotations

from collections.abc import Callable

from sglang.srt.config import Config
from sglang.srt.config.engine_configs import engine_configs
from sglang.srt.remote.curve_keys import read_front_keys
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.serving_engines import ServingEngines
from sglang.srt.routing.router import Router
from sglang.srt.runtime.fleet.engine_fleet import Fleet
from sglang.srt.runtime.fleet.members import Members
from sglang.srt.runtime.fleet.remote_supervisor import RemoteSupervisor
from sglang.srt.runtime.fleet.slow_engines import SlowEngines
from sglang.srt.runtime.supervisor import Supervisor
from sglang.srt.tokenizer import Tokenizer


def supervisors(config: Config, tokenizer: Tokenizer) -> list[Supervisor]:
    """One for each engine that the server starts, or uses. Raises OSError, ValueError for a file of
    keys that is none."""
    if config.routing.engines:
        connect = connector(config, tokenizer)
        return [connect(address) for address in config.routing.engines]
    return [Supervisor(own, tokenizer, name) for name, own in engine_configs(config)]


def connector(config: Config, tokenizer: Tokenizer) -> Callable[[str], Supervisor]:
    """Makes the supervisor of an engine at an address. Raises OSError, ValueError for a file of
    keys that is none."""
    path = config.routing.engine_keys
    keys = read_front_keys(path) if path else None
    return lambda address: RemoteSupervisor(config, tokenizer, address, keys)


def fleet_of(config: Config, members: Members) -> Fleet:
    """The fleet of engines that have been started."""
    routing = config.routing
    router = Router(
        routing.routing_policy, seed=config.model.random_seed, shared=routing.shared_engines
    )
    fleet = Fleet(members, router, SlowEngines(routing.slow_engine_factor))
    fleet.start()
    return fleet


def completer_on(engines: ServingEngines, config: Config, tokenizer: Tokenizer) -> Completer:
    """The Completer of a server, with its limits."""
    completer = Completer(
        engines, tokenizer, config.server.max_tokenized_bytes, config.model.random_seed
    )
    completer.max_resumes = config.operations.max_resumes
    return completer
