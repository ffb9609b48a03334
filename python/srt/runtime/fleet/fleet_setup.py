"""Creation of a server's engines, of the fleet of these engines, and of its Completer."""

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
    """Return a supervisor for each engine that the server starts or connects to. Raises OSError,
    and ValueError for an invalid key file."""
    if config.routing.engines:
        connect = connector(config, tokenizer)
        return [connect(address) for address in config.routing.engines]
    return [Supervisor(own, tokenizer, name) for name, own in engine_configs(config)]


def connector(config: Config, tokenizer: Tokenizer) -> Callable[[str], Supervisor]:
    """Return a function that makes the supervisor of an engine at an address. Raises OSError, and
    ValueError for an invalid key file."""
    path = config.routing.engine_keys
    keys = read_front_keys(path) if path else None
    return lambda address: RemoteSupervisor(config, tokenizer, address, keys)


def fleet_of(config: Config, members: Members) -> Fleet:
    """Return the fleet of the members, which have been started."""
    routing = config.routing
    router = Router(
        routing.routing_policy, seed=config.model.random_seed, shared=routing.shared_engines
    )
    fleet = Fleet(members, router, SlowEngines(routing.slow_engine_factor))
    fleet.start()
    return fleet


def completer_on(engines: ServingEngines, config: Config, tokenizer: Tokenizer) -> Completer:
    """Return the Completer of a server, with its configured limits."""
    completer = Completer(
        engines, tokenizer, config.server.max_tokenized_bytes, config.model.random_seed
    )
    completer.max_resumes = config.operations.max_resumes
    return completer
