"""Getting to know a worker: what it serves, what it speaks, where its hand-offs are found."""

from msgspec import Struct, structs

from gateway.links.base import Deadlines, Reply
from gateway.member import Worker
from schemas.codec import guarded, json_decoder
from schemas.dialect import PACKRELAY, Dialect, stock_dialect
from schemas.openai.models import ModelList
from schemas.server_info import PackrelayInfo, ServerInfo


class _Version(Struct):
    version: str


_models = json_decoder(ModelList)
_server_info = json_decoder(ServerInfo)
_version = json_decoder(_Version)


async def prepare(worker: Worker, deadlines: Deadlines, dialect: Dialect | None = None) -> None:
    """Fill in what a worker says of itself. `dialect` is that of every worker that does not identify itself as ours.

    Raises LinkError, or ServingError for an answer that cannot be read.
    """
    models = await worker.link.get("/v1/models", deadlines)
    listed: ModelList = guarded(_models.decode, models.body)
    reply = await worker.link.get("/server_info", deadlines)
    info: ServerInfo = guarded(_server_info.decode, reply.body) if reply.status == 200 else ServerInfo()
    if isinstance(info.packrelay, PackrelayInfo):
        spoken = structs.replace(PACKRELAY, deferred=info.packrelay.deferred)
        engine = info.packrelay.engine
    else:
        spoken = dialect or stock_dialect(_version_of(await worker.link.get("/version", deadlines)))
        engine = "stock"
    worker.models, worker.engine, worker.dialect = listed.data, engine, spoken
    worker.handoff_endpoint = dict(info.disaggregated_params or {})
    worker.identity_checked = True


def _version_of(reply: Reply) -> str | None:
    """What a worker says its version is; None if it has no such page."""
    if reply.status != 200:
        return None
    said: _Version = guarded(_version.decode, reply.body)
    return said.version
