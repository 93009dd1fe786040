"""Devices that are workers of a Dask cluster.

A worker is a device if it has a resource whose name begins with "jangin". Each device does one job at a time.
Dask moves jobs and answers, and notices workers that die."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from jangin.farm.coordinator import SchedulerGone
from jangin.farm.jobs import Answer, Event, Job

RESOURCE = "jangin"
"""The beginning of the names of resources that make workers devices."""
FRESH = 1.0
"""Seconds for which the list of workers isn't asked for again. Each question is a message to the scheduler,
and workers come and go less often."""
PATIENCE = 120.0
"""Seconds to wait for a scheduler that is gone, for a first device, or for a device's word on itself. Small
boards take a minute to start."""
CONNECT = 10.0
"""The seconds that one attempt to reach the scheduler may take. A network that works answers within a
second."""


def _check(address: str) -> None:
    """Raise ValueError for an address that Dask can't read. Dask's own client would print a stack trace much
    later."""
    from distributed import Security
    from distributed.comm import get_address_host_port, parse_address

    example = "give the scheduler's as tcp://HOST:PORT"
    try:
        get_address_host_port(address)
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"{address!r} is no address of a Dask scheduler ({error}): {example}") from None
    if parse_address(address)[0] == "tls" and Security().get_connection_args("client")["ssl_context"] is None:
        raise ValueError(f"{address} needs certificates in Dask's configuration (distributed.comm.tls)")


class Cluster:
    """A connection to a Dask scheduler. It is made again when the scheduler comes back, and `connections`
    counts how often. The object `held` is sent to each worker once."""

    def __init__(self, address: str, held: Any, key: str) -> None:
        self._address, self._held, self._key = address, held, key
        self._client: Any = None
        self._future: Any = None
        self._workers: dict[str, tuple[str, str]] = {}
        self._asked = float("-inf")
        self.connections = 0
        self.connect()

    def connect(self) -> None:
        """Connect to the scheduler. Raises SchedulerGone if it isn't there, RuntimeError without Dask, and
        ValueError for an address that Dask can't read."""
        try:
            from distributed import Client
        except ImportError:
            raise RuntimeError("a farm needs Dask: pip install 'jangin[farm]'") from None
        self.close()
        _check(self._address)
        try:
            self._client = Client(self._address, timeout=CONNECT, set_as_default=False)
            self._future = self._client.submit(_same, self._held, key=f"jangin-farm-{self._key}")
            self.connections += 1
        except (OSError, TimeoutError) as error:
            raise SchedulerGone(f"no Dask scheduler answers at {self._address}: {error}") from None

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.close(timeout=2)

    def workers(self) -> Mapping[str, tuple[str, str]]:
        """Return the devices by name, with the worker's address and its resource. Raises SchedulerGone."""
        if self._client is None or self._client.status != "running":
            self.connect()
        if time.monotonic() - self._asked > FRESH:
            try:
                infos = self._client.scheduler_info(n_workers=-1)["workers"]
            except (OSError, TimeoutError) as error:
                raise SchedulerGone(f"the Dask scheduler at {self._address} is gone: {error}") from None
            self._workers = {str(w["name"]): (a, r) for a, w in infos.items() for r in [_resource(w)] if r}
            self._asked = time.monotonic()
        return self._workers

    def first_workers(self, patience: float) -> Mapping[str, tuple[str, str]]:
        """Return the devices as `workers` does, as soon as there is one. Raises ValueError after `patience`
        seconds without any."""
        end = time.monotonic() + patience
        while not (devices := self.workers()):
            if time.monotonic() > end:
                raise ValueError(
                    "no worker of the farm is a device: start some with `dask worker ADDRESS --nthreads 1 "
                    f'--resources "{RESOURCE}-NAME=1"`'
                )
            time.sleep(FRESH)
        return devices

    def submit(self, device: str, function: Callable[..., Any], *given: Any) -> Any:
        """Return the future of a call of `function` on one device, with the object `held` and the other
        arguments."""
        address, resource = self.workers()[device]
        return self._client.submit(
            function, self._future, *given, workers=[address], allow_other_workers=False, pure=False,
            resources={resource: 1}, retries=0,
        )  # fmt: skip

    def send(self, device: str, data: bytes) -> Any:
        """Send bytes to a device. Return their future, which is an argument for `submit`."""
        return self._client.scatter(data, workers=[self.workers()[device][0]], hash=False)

    def anywhere(self, resource: str, function: Callable[..., Any], *given: Any, retries: int = 0) -> Any:
        """Return the future of a call of `function` on any device with a resource. A failed call is repeated
        up to `retries` times. If the worker dies, Dask repeats the call by itself."""
        return self._client.submit(
            function, self._future, *given, pure=False, resources={resource: 1}, retries=retries
        )

    def as_completed(self, futures: Sequence[Any]) -> Iterator[Any]:
        """Yield futures as they end."""
        from distributed import as_completed

        yield from as_completed(futures, loop=self._client.loop)

    def restart(self, device: str) -> None:
        """Restart the worker that is the device, if a nanny process watches it and can do so."""
        address = self._workers.get(device, ("", ""))[0]
        try:
            self._client.restart_workers([address], timeout=CONNECT, raise_for_error=False)
        except Exception:  # a worker without a nanny, or one that is gone; the coordinator leaves it out
            return


def _same(held: Any) -> Any:
    return held


def _resource(worker: Mapping[str, Any]) -> str:
    """Return the name of the resource that makes a worker a device, or "" if the worker has none."""
    return next((str(r) for r in worker.get("resources", {}) if str(r).startswith(RESOURCE)), "")


class DaskTransport:
    """The connection between a coordinator and the devices of one kind. `begin` begins a job on a device, and
    returns its future. `accept` converts what a device returned to an answer. It raises ValueError for an
    answer that doesn't count."""

    def __init__(
        self,
        cluster: Cluster,
        chosen: Callable[[str], bool],
        begin: Callable[[str, Job], Any],
        accept: Callable[[Any, Job], Answer],
    ) -> None:
        self._cluster, self._chosen, self._begin, self._accept = cluster, chosen, begin, accept
        self._connection = cluster.connections
        self._running: dict[str, tuple[Job, str, Any]] = {}
        self._ended: queue.Queue[tuple[str, Any]] = queue.Queue()

    def devices(self) -> Collection[str]:
        workers = self._cluster.workers()
        if self._connection != self._cluster.connections:  # futures of the old connection can't be asked
            self._connection = self._cluster.connections
            raise SchedulerGone("the farm's scheduler was started anew")
        for device, (_, address, future) in [*self._running.items()]:
            if workers.get(device, ("", ""))[0] != address:
                del self._running[device]  # it is another process now
                future.cancel()
                self._ended.put((device, None))
        return [name for name in workers if self._chosen(name)]

    def now(self) -> float:
        return time.monotonic()

    def start(self, device: str, job: Job) -> None:
        if device not in self._cluster.workers():
            self._ended.put((device, None))  # it went away just now
            return
        future = self._begin(device, job)
        self._running[device] = job, self._cluster.workers()[device][0], future
        future.add_done_callback(lambda done: self._ended.put((device, done)))

    def wait(self, seconds: float) -> Sequence[Event]:
        try:
            first = self._ended.get(timeout=min(seconds, FRESH))
        except queue.Empty:
            return ()
        return [e for ended in [first, *self._rest()] if (e := self._event(*ended)) is not None]

    def _rest(self) -> Iterator[tuple[str, Any]]:
        while not self._ended.empty():
            yield self._ended.get()

    def _event(self, device: str, done: Any) -> Event | None:
        """Return the event of a finished future, or None if its job was ended before."""
        if done is None:
            return Event(device, None, "died")
        if device not in self._running or self._running[device][2] is not done:
            return None
        job, _, _ = self._running.pop(device)
        if done.status != "finished":
            return Event(
                device, None, f"failed ({done.exception() if done.status == 'error' else 'it was lost'})"
            )
        try:
            return Event(device, self._accept(done.result(), job))
        except ValueError as error:
            return Event(device, None, f"isn't believed: {error}")

    def restart(self, device: str) -> None:
        if device in self._running:
            self._running.pop(device)[2].cancel()
        self._cluster.restart(device)

    def forget(self) -> None:
        """Drop all jobs, because the scheduler that had them is gone."""
        self._running.clear()
        while not self._ended.empty():
            self._ended.get()
