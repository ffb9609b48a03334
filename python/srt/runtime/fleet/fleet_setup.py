"""Makes the engines of a server, the fleet of them, and the Completer on it."""

from __future__ import annotations

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
    routing = config.routing
    if routing.engines:
        keys = read_front_keys(routing.engine_keys) if routing.engine_keys else None
        return [RemoteSupervisor(config, tokenizer, address, keys) for address in routing.engines]
    return [Supervisor(own, tokenizer, name) for name, own in engine_configs(config)]


def fleet_of(config: Config, members: Members) -> Fleet:
    """The fleet of engines that have been started."""
    routing = config.routing
    router = Router(routing.routing_policy, seed=config.model.random_seed)
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
