"""The section of a Config that says how many ranks there are, and on which machines."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.config.sections import flag

MAX_ENGINES = 64


@dataclass(frozen=True)
class ParallelConfig:
    """Several engines in parallel, and ranks: one model over several processes, devices or
    machines."""

    dp_size: int = flag(
        1, "engines of this server, each with the whole model; they share the requests",
        type=int,
    )  # fmt: skip
    tp_size: int = flag(1, "tensor-parallel ranks: each has a share of every layer", type=int)
    pp_size: int = flag(1, "pipeline stages: each has some of the layers", type=int)
    base_gpu_id: int = flag(
        0, "number of the first GPU; engines and ranks take the next ones", type=int
    )
    assigned_layers: str = flag("", "layers of each stage, as 9,7; omitted: as even as possible")
    dist_init_addr: str = flag(
        "", "HOST:PORT at which the ranks of other machines find node 0; node 0 listens there"
    )
    nnodes: int = flag(1, "machines that share the ranks", type=int)
    node_rank: int = flag(
        0, "number of this machine; 0 runs the server, others only ranks", type=int
    )
    dist_timeout: int = flag(300, "seconds that the start waits for a rank or a machine", type=int)

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return self.tp_size * self.pp_size

    @property
    def local_ranks(self) -> int:
        """Number of the ranks of each machine."""
        return self.ranks // self.nnodes

    @property
    def local_processes(self) -> int:
        """Number of the processes that compute on each machine."""
        return self.dp_size * self.local_ranks

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of ``dist_init_addr``; port -1 where it has none."""
        host, _, port = self.dist_init_addr.rpartition(":")
        valid = port.isascii() and port.isdigit() and 0 < int(port) < 65536
        return host.strip("[]"), int(port) if valid else -1

    @property
    def layer_counts(self) -> tuple[int, ...]:
        """The numbers of ``assigned_layers``. Raises ValueError."""
        parts = self.assigned_layers.split(",") if self.assigned_layers.strip() else []
        if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
            raise ValueError(
                f"--assigned-layers is {self.assigned_layers!r}; give whole numbers with commas "
                "between them, one for each stage."
            )
        return tuple(map(int, parts))

    def verify(self) -> None:
        """Raise ValueError for sizes that do not fit each other."""
        for name in ("dp_size", "tp_size", "pp_size", "nnodes", "dist_timeout"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.base_gpu_id < 1024:
            raise ValueError(f"--base-gpu-id is {self.base_gpu_id}; it must be from 0 to 1023")
        if self.dp_size > MAX_ENGINES:
            raise ValueError(
                f"--dp-size is {self.dp_size}; one server starts at most {MAX_ENGINES} engines"
            )
        if self.dp_size > 1 and self.nnodes > 1:
            raise ValueError(
                f"--dp-size is {self.dp_size} and --nnodes {self.nnodes}; an engine over several "
                "machines has a server of its own"
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise ValueError(
                f"--node-rank is {self.node_rank}; with --nnodes {self.nnodes} it must be from 0 "
                f"to {self.nnodes - 1}"
            )
        counts = self.layer_counts
        if counts and (len(counts) != self.pp_size or min(counts) < 1):
            raise ValueError(
                f"--assigned-layers is {self.assigned_layers!r}; with --pp-size {self.pp_size} it "
                f"must be {self.pp_size} numbers, each at least 1"
            )
        if self.ranks % self.nnodes:
            raise ValueError(
                f"--nnodes is {self.nnodes} and there are {self.ranks} ranks (--tp-size times "
                "--pp-size); every machine must have the same number of them"
            )
        host, port = self.address
        if (self.dist_init_addr or self.nnodes > 1) and (not host or port < 0):
            raise ValueError(
                f"--dist-init-addr is {self.dist_init_addr!r}; with --nnodes {self.nnodes} it must "
                "be HOST:PORT of node 0, a port from 1 to 65535"
            )
