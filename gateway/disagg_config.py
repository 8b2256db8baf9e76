"""The YAML file of `trtllm-serve disaggregated`, read as it is: what it says in our own settings, and what it says in vain.

    DisaggConfigRefused   the file cannot be used; the message has the path of the key and a sentence

Source: trtllm-wire.md 5.1. Keys that are not the orchestrator's own are arguments of the workers' LLM, inherited into both sections
of servers; a section that says something else than the file's top is a conflict. PyYAML is named here only.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml
from msgspec import UNSET, Meta, Struct, UnsetType, field

Settings = dict[str, tuple[str, ...]]
"""Values by the name of a setting, each as it would stand behind its flag."""

ROUTERS: Final = {"round_robin": "round_robin", "load_balancing": "least_loaded"}
"""Stock's routers that exist here, by the names they have here."""
_ROUTER_ARGUMENTS: Final = {
    "round_robin": frozenset[str](),
    "load_balancing": frozenset({"use_tokens"}),
    "kv_cache_aware": frozenset(
        {
            "use_tokens",
            "max_batch_size",
            "tokens_per_block",
            "custom_tokenizer",
            "tokenizer_dir",
            "use_harmony",
            "model_path",
            "track_routed_blocks",
            "load_weight",
            "load_cap",
        }
    ),
    "conversation": frozenset(
        {"match_threshold", "tokens_per_block", "use_token_ids", "hash_skip_count", "max_sessions", "use_harmony"}
    ),
}
_SECTIONS: Final = {"context_servers": "context", "generation_servers": "generation"}
_PASSED_OVER: Final = (
    "perf_metrics_max_requests",
    "otlp_config",
    "gen_tokids_ctxbytes",
    "disagg_coordinator_url",
    "return_perf_metrics",
    "perf_metrics_output_dir",
)
"""The orchestrator's own keys that change nothing here. Prompt ids always travel as bytes; gateways need no coordinator."""

_NAMED: Final = re.compile(r"(missing required|unknown) field `([^`]+)`")
_Count = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[float, Meta(gt=0)]


class DisaggConfigRefused(Exception):
    """The file cannot be used. The message names the file and the key."""


class _Conditional(Struct, forbid_unknown_fields=True):
    max_local_prefill_length: _Count = 0


class _Minimal(Struct, forbid_unknown_fields=True):
    context_servers: _Count = 1
    generation_servers: _Count = 1


class _Cluster(Struct, forbid_unknown_fields=True, kw_only=True):
    cluster_uri: str
    cluster_name: str = ""
    minimal_instances: _Minimal = field(default_factory=_Minimal)
    heartbeat_interval_sec: _Seconds | UnsetType = UNSET
    inactive_timeout_sec: _Seconds = 10.0


class _Section(Struct):
    num_instances: _Count | None = None
    urls: list[str] | None = None
    router: dict[str, Any] | None = None


class _Top(Struct, kw_only=True):
    """The keys that are acted on; Any where only the presence matters."""

    hostname: str | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    max_retries: _Count | None = None
    context_servers: dict[str, Any] | None = None
    generation_servers: dict[str, Any] | None = None
    conditional_disagg_config: _Conditional | None = None
    disagg_cluster: _Cluster | None = None
    node_id: Annotated[int, Meta(ge=0, le=255)] | None = None
    schedule_style: Literal["context_first", "generation_first"] | None = None
    allow_request_chat_template: bool | None = None
    gen_strip_message_history: bool | None = None
    num_workers: Annotated[int, Meta(ge=1)] | None = None
    server_keep_alive_timeout: Annotated[int, Meta(ge=1)] | None = None
    internal_request_auth_key: Annotated[str, Meta(min_length=1)] | None = None


_PLAIN: Final = {
    "hostname": "host",
    "port": "port",
    "max_retries": "retries",
    "node_id": "node_id",
    "schedule_style": "schedule_style",
    "allow_request_chat_template": "allow_request_chat_template",
    "gen_strip_message_history": "strip_message_history",
    "num_workers": "processes",
    "server_keep_alive_timeout": "keep_alive_timeout",
    "internal_request_auth_key": "internal_key",
}
"""Keys that are one of our settings by another name."""


class DisaggConfig(Struct, frozen=True):
    """What a file says: `settings` for the gateway, and the paths of the keys it does not act on."""

    settings: Settings
    ignored: tuple[str, ...]


def read_disagg_config(path: Path, router_fallback: str | None = None) -> DisaggConfig:
    """Read a file. `router_fallback` is used for a router that does not exist here. Raises DisaggConfigRefused."""
    try:
        return _Reading(_mapping(path), router_fallback).read()
    except OSError as error:
        raise DisaggConfigRefused(f"{path} cannot be read: {error.strerror or error}.") from error
    except yaml.YAMLError as error:
        raise DisaggConfigRefused(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    except (msgspec.ValidationError, _Refusal) as error:
        raise DisaggConfigRefused(f"{path}: {error}") from error


class _Refusal(Exception):
    """A key that cannot be used: its path and a sentence."""

    def __init__(self, path: str, sentence: str) -> None:
        super().__init__(f"{path}: {sentence}")


class _Loader(yaml.SafeLoader):
    """YAML's plain types only; a key that stands twice is refused, where the last one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def _mapping(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        loaded = yaml.load(file, _Loader)  # noqa: S506  a safe loader, with one rule more
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise _Refusal("the file", "expected a map of keys to values.")
    return loaded


class _Reading:
    """One file being read."""

    def __init__(self, file: Mapping[str, Any], router_fallback: str | None) -> None:
        self._file = file
        self._fallback = router_fallback
        self._top = _converted({name: file[name] for name in _Top.__struct_fields__ if name in file}, _Top, "")
        self._inherited = {
            name: value for name, value in file.items() if name not in {*_Top.__struct_fields__, *_PASSED_OVER}
        }
        self._settings: Settings = {}
        self._ignored = [name for name in _PASSED_OVER if name in file]

    def read(self) -> DisaggConfig:
        """Everything the file says."""
        for key, setting in _PLAIN.items():
            value = getattr(self._top, key)
            if value is not None:
                self._settings[setting] = (str(value).lower() if isinstance(value, bool) else str(value),)
        if self._top.conditional_disagg_config is not None:
            length = self._top.conditional_disagg_config.max_local_prefill_length
            self._settings["max_local_prefill_length"] = (str(length),)
        if self._top.disagg_cluster is not None:
            self._read_cluster(self._top.disagg_cluster)
        for name in _SECTIONS:
            self._read_section(name)
        return DisaggConfig(self._settings, tuple(dict.fromkeys(self._ignored)))

    def _read_cluster(self, cluster: _Cluster) -> None:
        self._settings |= {
            "cluster_uri": (cluster.cluster_uri,),
            "cluster_name": (cluster.cluster_name,),
            "min_context_workers": (str(cluster.minimal_instances.context_servers),),
            "min_generation_workers": (str(cluster.minimal_instances.generation_servers),),
            "inactive_timeout": (str(cluster.inactive_timeout_sec),),
        }
        if cluster.heartbeat_interval_sec is not UNSET:
            self._ignored.append("disagg_cluster.heartbeat_interval_sec")

    def _read_section(self, name: str) -> None:
        said: dict[str, Any] = getattr(self._top, name) or {}
        for key, value in self._inherited.items():
            if key in said and said[key] != value:
                raise _Refusal(f"{name}.{key}", f"{said[key]!r} conflicts with {value!r} at the file's top.")
        section = _converted(self._inherited | said, _Section, name)
        self._read_urls(name, section)
        if section.router is not None:
            path = f"{name}.router" if "router" in said else "router"
            self._read_router(path, _SECTIONS[name], section.router)
        own = [key for key in said if key not in _Section.__struct_fields__]
        inherited = [key for key in self._inherited if key not in _Section.__struct_fields__ and key not in said]
        self._ignored += [*(f"{name}.{key}" for key in own), *inherited]

    def _read_urls(self, name: str, section: _Section) -> None:
        urls = section.urls or []
        if self._top.disagg_cluster is not None:
            self._ignored += [f"{name}.{key}" for key in ("urls", "num_instances") if getattr(section, key) is not None]
            return
        if section.num_instances is not None and section.num_instances != len(urls):
            raise _Refusal(f"{name}.num_instances", f"{section.num_instances} conflicts with {len(urls)} urls.")
        if urls:
            self._settings[f"{_SECTIONS[name]}_worker"] = tuple(_url(url) for url in urls)

    def _read_router(self, path: str, role: str, router: dict[str, Any]) -> None:
        arguments = dict(router)
        kind = arguments.pop("type", "round_robin")
        if kind not in _ROUTER_ARGUMENTS:
            raise _Refusal(f"{path}.type", f"{kind!r} is no router; known are {', '.join(_ROUTER_ARGUMENTS)}.")
        for argument in arguments:
            if argument not in _ROUTER_ARGUMENTS[kind]:
                raise _Refusal(f"{path}.{argument}", f"the router {kind} has no such argument.")
        self._ignored += [f"{path}.{argument}" for argument in arguments]
        self._settings[f"{role}_router"] = (self._router(path, kind),)

    def _router(self, path: str, kind: str) -> str:
        if kind in ROUTERS:
            return ROUTERS[kind]
        if self._fallback is None:
            raise _Refusal(
                f"{path}.type", f"the router {kind} does not exist here yet; --router-fallback names another."
            )
        self._ignored.append(f"{path}.type")
        return self._fallback


def _converted(value: dict[str, Any], type_: Any, name: str) -> Any:
    """The value as its Struct. Any: one function for several Structs."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        sentence, _, where = str(error).partition(" - at `$")
        path = f"{name}{where.rstrip('`')}"
        if named := _NAMED.search(sentence):
            path, sentence = (
                f"{path}.{named[2]}",
                "is missing" if named[1] == "missing required" else "there is no such key",
            )
        path = path.lstrip(".")
        raise _Refusal(path or "the file", f"{sentence[0].lower()}{sentence[1:]}.") from error


def _url(url: str) -> str:
    """Stock has `host:port`; a scheme may stand before it here."""
    return url if "://" in url else f"http://{url}"
