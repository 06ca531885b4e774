"""How a worker behaves: lengths of leases, waits and bounds, with the reasons for their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of one worker process. Times are in seconds.

    slots: tasks run at once. lease_s: how long a session is trusted without renewal; a dead worker's tasks
    move on after that. renew_s: between renewals (a third of the lease by default). poll_s: the safety net
    where no hint comes. sweep_s: between looks for dead sessions, due timers and deadlines. linger_s: how
    long a wait stays in memory before the task gives up its slot. grace_s: how long a drain or a task's end
    waits for calls under way. processes: child processes for steps that ask for one. max_deaths: worker
    deaths in a row that park a task. pools: the pools served; empty means those of the registered agents.
    dev: tell developers of what works only by luck.
    """

    name: str = "worker"
    slots: int = 100
    pools: tuple[str, ...] = ()
    lease_s: float = 15.0
    renew_s: float | None = None
    poll_s: float = 0.5
    sweep_s: float = 1.0
    linger_s: float = 1.0
    grace_s: float = 10.0
    processes: int = 4
    max_deaths: int = 3
    dev: bool = False
    batch_entries: int = 2000
    batch_bytes: int = 4_000_000

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigurationError(f"a worker needs at least one slot, not {self.slots}")
        if self.processes < 1:
            raise ConfigurationError(f"processes must be at least one, not {self.processes}")
        if not 0 < self.renewal_s < self.lease_s:
            raise ConfigurationError("renew_s must be more than zero and less than lease_s")
        for name in ("poll_s", "sweep_s"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be more than zero")

    @property
    def renewal_s(self) -> float:
        """Seconds between renewals."""
        return self.lease_s / 3 if self.renew_s is None else self.renew_s
