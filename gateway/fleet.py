"""The workers known, what they serve, and which of them can take a request now."""

import asyncio
from collections.abc import Iterable, Sequence

import structlog
from msgspec import Struct, structs

from gateway.links.base import Deadlines, LinkError
from gateway.member import Role, Worker
from gateway.routing.base import Policy
from schemas.codec import guarded, json_decoder
from schemas.dialect import PACKRELAY, STOCK
from schemas.openai.errors import ErrorKind, ServingError
from schemas.openai.models import Model, ModelList
from schemas.server_info import PackrelayInfo, ServerInfo

_models = json_decoder(ModelList)
_server_info = json_decoder(ServerInfo)
_log = structlog.get_logger(__name__)


class Pair(Struct, frozen=True):
    """The workers of one disaggregated request: same model, same engine kind."""

    context: Worker
    generation: Worker


class Probing(Struct, frozen=True, kw_only=True):
    """How workers are checked: every `interval` seconds, each answer within `timeout`; `failures` in a row mean down."""

    interval: float = 1.0
    timeout: float = 2.0
    failures: int = 2


class Fleet:
    """All workers of this gateway. Owns their links, and checks each of them for as long as it runs."""

    def __init__(self, workers: Sequence[Worker], policies: dict[Role, Policy], probing: Probing) -> None:
        self.workers = list(workers)
        self._policies = policies
        self._probing = probing
        self._deadlines = Deadlines(
            connect=probing.timeout, first_byte=probing.timeout, idle=probing.timeout, total=probing.timeout
        )
        self._misses = dict.fromkeys(self.workers, 0)
        self._checks: asyncio.Task[None] | None = None

    # --- what is served ---

    def models(self) -> list[Model]:
        """The union of what the workers serve, each model once, in the order of the fleet."""
        union: dict[str, Model] = {}
        for worker in self.workers:
            for model in worker.models:
                union.setdefault(model.id, model)
        return list(union.values())

    def can_serve(self) -> bool:
        """Whether any model can be answered now: by one worker that does both, or by a pair."""
        return any(
            self._of(model.id, Role.BOTH, strict=True) or self._pairs(model.id, strict=True) for model in self.models()
        )

    # --- who takes a request ---

    def aggregated(self, model: str, avoid: Iterable[Worker] = ()) -> Worker | None:
        """A worker that does both legs itself; one of `avoid` only if there is no other."""
        return self._choose(Role.BOTH, self._of(model, Role.BOTH), avoid)

    def generation(self, model: str, avoid: Iterable[Worker] = ()) -> Worker | None:
        """A generation worker, to do a whole request alone."""
        return self._choose(Role.GENERATION, self._of(model, Role.GENERATION), avoid)

    def pair(self, model: str, avoid: Iterable[Worker] = ()) -> Pair | None:
        """A context and a generation worker of one engine kind, or neither."""
        pairs = self._pairs(model)
        context = self._choose(Role.CONTEXT, list(dict.fromkeys(pair.context for pair in pairs)), avoid)
        if context is None:
            return None
        partners = [pair.generation for pair in pairs if pair.context is context]
        generation = self._choose(Role.GENERATION, partners, avoid)
        return None if generation is None else Pair(context, generation)

    def nobody(self, model: str) -> ServingError:
        """Why no worker can take this model's request."""
        if any(known.id == model for known in self.models()):
            return ServingError(ErrorKind.UNAVAILABLE, "No worker can take this request now.", retry_after=1)
        if self.workers and not self.models():
            return ServingError(ErrorKind.UNAVAILABLE, "The workers are not ready yet.", retry_after=1)
        message = f"The model '{model[:128]}' does not exist."
        return ServingError(ErrorKind.NOT_FOUND, message, param="model", code="model_not_found")

    def _of(self, model: str, role: Role, *, strict: bool = False) -> list[Worker]:
        """Workers of a role with a model: the usable ones, or, when there are none, all (asking them costs little)."""
        known = [worker for worker in self.workers if worker.role is role and worker.serves(model)]
        usable = [worker for worker in known if worker.usable()]
        return usable if usable or strict else known

    def _pairs(self, model: str, *, strict: bool = False) -> list[Pair]:
        generations = self._of(model, Role.GENERATION, strict=strict)
        return [
            Pair(context, generation)
            for context in self._of(model, Role.CONTEXT, strict=strict)
            for generation in generations
            if context.engine == generation.engine
        ]

    def _choose(self, role: Role, candidates: Sequence[Worker], avoid: Iterable[Worker]) -> Worker | None:
        fresh = [worker for worker in candidates if worker not in avoid]
        return self._policies[role].choose(fresh or candidates) if candidates else None

    # --- health ---

    async def start(self) -> None:
        """Check every worker once, then keep checking in the background."""
        await self._check_all()
        self._checks = asyncio.create_task(self._keep_checking(), name="fleet-checks")

    async def close(self) -> None:
        """Stop checking and end all links. A second call does nothing."""
        if self._checks is not None:
            self._checks.cancel()
            await asyncio.gather(self._checks, return_exceptions=True)
            self._checks = None
        await asyncio.gather(*(worker.link.close() for worker in self.workers))

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._probing.interval)
            await self._check_all()

    async def _check_all(self) -> None:
        await asyncio.gather(*(self._check(worker) for worker in self.workers))

    async def _check(self, worker: Worker) -> None:
        try:
            reply = await worker.link.get("/health", self._deadlines)
            healthy = reply.status == 200
            if healthy and not worker.up:
                await self._prepare(worker)
        except (LinkError, ServingError) as error:
            _log.debug("worker.check_failed", worker=worker.index, reason=str(error))
            healthy = False
        self._misses[worker] = 0 if healthy else self._misses[worker] + 1
        self._set_up(worker, healthy or (worker.up and self._misses[worker] < self._probing.failures))

    def _set_up(self, worker: Worker, up: bool) -> None:
        if up is not worker.up:
            _log.info("worker.up" if up else "worker.down", worker=worker.index, role=worker.role)
        worker.up = up

    async def _prepare(self, worker: Worker) -> None:
        """Learn what a worker serves and speaks. A worker that does not identify itself is stock."""
        models = await worker.link.get("/v1/models", self._deadlines)
        listed: ModelList = guarded(_models.decode, models.body)
        reply = await worker.link.get("/server_info", self._deadlines)
        info: ServerInfo = guarded(_server_info.decode, reply.body) if reply.status == 200 else ServerInfo()
        ours = info.packrelay if isinstance(info.packrelay, PackrelayInfo) else None
        worker.models = listed.data
        worker.engine = ours.engine if ours else "stock"
        worker.dialect = structs.replace(PACKRELAY, deferred=ours.deferred) if ours else STOCK
        worker.handoff_endpoint = dict(info.disaggregated_params or {})
