"""The workers known, what they serve, and which of them can take a request now."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

import structlog

from gateway.links.base import Deadlines, LinkError
from gateway.member import Role, Worker
from gateway.preparation import prepare
from gateway.probing import Probing
from gateway.routing.base import Policy
from schemas.dialect import Dialect
from schemas.openai.errors import ErrorKind, ServingError
from schemas.openai.models import Model

_NO_MINIMUM: Final[Mapping[Role, int]] = {}
_CHECKS_PER_IDENTITY = 10
"""Every so many health checks a worker is asked again what it serves and speaks."""

_log = structlog.get_logger(__name__)


class Pair(NamedTuple):
    """The workers of one disaggregated request: same model, same engine kind."""

    context: Worker
    generation: Worker


class Fleet:
    """All workers of this gateway, which may come and go. Owns their links, and checks each of them for as long as it runs.

    `minimum` is how many workers of a role must be known before requests are served; `dialect` is that of stock workers, whatever
    their version says.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        policies: dict[Role, Policy],
        probing: Probing,
        minimum: Mapping[Role, int] = _NO_MINIMUM,
        dialect: Dialect | None = None,
    ) -> None:
        self._put(workers)
        self.minimum = minimum
        self._policies = policies
        self._probing = probing
        self._dialect = dialect
        self._deadlines = Deadlines(
            connect=probing.timeout, first_byte=probing.timeout, idle=probing.timeout, total=probing.timeout
        )
        self._first_checks: set[asyncio.Task[None]] = set()
        self._leaving: dict[asyncio.Task[None], Worker] = {}
        self._checks: asyncio.Task[None] | None = None

    # --- who belongs to it ---

    def free_index(self) -> int:
        """The lowest index that no worker has: they are labels of metrics, so there must not be ever more of them."""
        taken = {worker.index for worker in (*self.workers, *self._leaving.values())}
        return next(index for index in count() if index not in taken)

    def add(self, worker: Worker) -> asyncio.Task[None]:
        """Take a worker in. It gets work as soon as a check has found it prepared: the one answered, or any later one."""
        self._put(sorted([*self.workers, worker], key=lambda known: known.index))
        check = asyncio.create_task(self._check(worker), name=f"worker-check-{worker.index}")
        self._first_checks.add(check)
        check.add_done_callback(self._first_checks.discard)
        return check

    def remove(self, worker: Worker) -> None:
        """Give a worker no more work; its link ends when the legs it has are over. A second call does nothing."""
        if worker in self.workers:
            self._put([known for known in self.workers if known is not worker])
            leaving = asyncio.create_task(self._let_go(worker), name=f"worker-leaving-{worker.index}")
            self._leaving[leaving] = worker
            leaving.add_done_callback(self._leaving.pop)

    async def _let_go(self, worker: Worker) -> None:
        await worker.idle.wait()
        await worker.link.close()

    def _put(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)
        self._of_role = {role: [worker for worker in workers if worker.role is role] for role in Role}

    def complete(self) -> bool:
        """Whether there are as many prepared workers of each role as the operator wants at least."""
        if not self.minimum:
            return True
        prepared = [worker.role for worker in self.workers if worker.models]
        return all(prepared.count(role) >= least for role, least in self.minimum.items())

    # --- what is served ---

    def models(self) -> list[Model]:
        """The union of what the workers serve, each model once, in the order of the fleet."""
        union: dict[str, Model] = {}
        for worker in self.workers:
            for model in worker.models:
                union.setdefault(model.id, model)
        return list(union.values())

    def can_serve(self) -> bool:
        """Whether the fleet is complete and any model can be answered now: by one worker that does both, or by a pair."""
        return self.complete() and any(
            self._of(model.id, Role.BOTH, strict=True) or self._contexts(model.id, strict=True)[0]
            for model in self.models()
        )

    def serves(self, model: str) -> bool:
        """Whether some worker has this model."""
        return any([model in worker.names for worker in self.workers])  # noqa: C419  a list: asked for every request

    # --- who takes a request ---

    def aggregated(self, model: str, avoid: Sequence[Worker] = ()) -> Worker | None:
        """A worker that does both legs itself; one of `avoid` only if there is no other."""
        return self._choose(Role.BOTH, self._of(model, Role.BOTH), avoid)

    def pair(self, model: str, avoid: Sequence[Worker] = ()) -> Pair | None:
        """A context and a generation worker of one engine kind, or neither."""
        contexts, generations = self._contexts(model)
        context = self._choose(Role.CONTEXT, contexts, avoid)
        if context is None:
            return None
        partners = [generation for generation in generations if generation.engine == context.engine]
        generation = self._choose(Role.GENERATION, partners, avoid)
        return None if generation is None else Pair(context, generation)

    def nobody(self, model: str) -> ServingError:
        """Why no worker can take this model's request."""
        if not self.complete():
            return ServingError(ErrorKind.UNAVAILABLE, "There are not enough workers yet.", retry_after=1)
        if self.serves(model):
            wait = min(
                (worker.resting for worker in self.workers if worker.serves(model) and worker.resting), default=1
            )
            return ServingError(ErrorKind.UNAVAILABLE, "No worker can take this request now.", retry_after=max(wait, 1))
        if not self.models() and (self.workers or self.minimum):
            return ServingError(ErrorKind.UNAVAILABLE, "The workers are not ready yet.", retry_after=1)
        message = f"The model '{model[:128]}' does not exist."
        return ServingError(ErrorKind.NOT_FOUND, message, param="model", code="model_not_found")

    def _of(self, model: str, role: Role, *, strict: bool = False) -> list[Worker]:
        """Workers of a role with a model: the usable ones, or, when there are none, all (asking them costs little).

        Those that said when to come back are never asked earlier. `strict` is for being ready: only usable ones, and back-pressure
        does not matter, for it is over soon.
        """
        known = [worker for worker in self._of_role[role] if model in worker.names]
        usable = [worker for worker in known if worker.up and worker.breaker.admits()]
        return usable if strict else [worker for worker in usable or known if not worker.resting]

    def _contexts(self, model: str, *, strict: bool = False) -> tuple[list[Worker], list[Worker]]:
        """The context workers that have a partner of their engine kind, and the generation workers."""
        if not self._of_role[Role.CONTEXT]:
            return [], []
        # None that is known to be down: a prefill that nobody can go on from costs more than asking. One whose breaker is open
        # may be all there is, and its trial may last as long as a stream.
        generations = [worker for worker in self._of(model, Role.GENERATION, strict=strict) if worker.up]
        if not generations:
            return [], generations
        engines = {generation.engine for generation in generations}
        contexts = self._of(model, Role.CONTEXT, strict=strict)
        return [context for context in contexts if context.engine in engines], generations

    def _choose(self, role: Role, candidates: Sequence[Worker], avoid: Sequence[Worker]) -> Worker | None:
        if not candidates:
            return None
        fresh = [worker for worker in candidates if worker not in avoid] if avoid else candidates
        return self._policies[role].choose(fresh or candidates)

    # --- health ---

    async def start(self) -> None:
        """Check every worker once, then keep checking in the background."""
        await asyncio.gather(*(self._check(worker) for worker in self.workers))
        self._checks = asyncio.create_task(self._keep_checking(), name="fleet-checks")

    async def close(self) -> None:
        """Stop checking and end all links. A second call does nothing."""
        tasks = [*self._first_checks, *self._leaving, *([self._checks] if self._checks is not None else [])]
        workers = {*self.workers, *self._leaving.values()}
        self._checks = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.link.close() for worker in workers))

    async def _keep_checking(self) -> None:
        """At every interval begin a check of each worker that has none under way: a silent worker delays its own next one alone."""
        checks: dict[Worker, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._probing.interval)
                checks = {worker: check for worker, check in checks.items() if not check.done()}
                for worker in self.workers:
                    if worker not in checks:
                        checks[worker] = tasks.create_task(self._check(worker), name=f"worker-check-{worker.index}")

    async def _check(self, worker: Worker) -> None:
        try:
            reply = await worker.link.get("/health", self._deadlines)
            healthy = reply.status == 200
            reason = "" if healthy else f"Its health check was answered {reply.status}."
            if healthy and not (worker.up and worker.identity_checked):
                await prepare(worker, self._deadlines, self._dialect)
        except (LinkError, ServingError) as error:
            _log.debug("worker.check_failed", worker=worker.index, reason=str(error))
            healthy, reason = False, str(error)
        except Exception:  # noqa: BLE001  a bug of ours in one check must not end the checking of all workers
            _log.exception("worker.check_broken", worker=worker.index)
            healthy, reason = False, "Its health check could not be made."
        worker.misses = 0 if healthy else worker.misses + 1
        worker.checks += 1
        if worker.misses or worker.checks % _CHECKS_PER_IDENTITY == 0:
            worker.identity_checked = False  # Another process may answer on this address by now.
        self._set_up(worker, healthy or (worker.up and worker.misses < self._probing.failures), reason)

    def _set_up(self, worker: Worker, up: bool, reason: str) -> None:
        if up is not worker.up or (not up and worker.checks == 1):  # A wrong address was never up: it is told once.
            said = {"worker": worker.index, "url": worker.link.url, "role": worker.role}
            if up:
                _log.info("worker.up", **said, dialect=worker.dialect.name)
            else:
                _log.warning("worker.down", **said, reason=reason)
            worker.ask_again()
        worker.up = up
