"""A recipe while it is drawn: its streams and operators, and what each hands to its readers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from tests.golden.descriptions.dice import Dice, Value, buffers, cti_settings, generator, sources, tagged

TEXTS = ("user", "country", "url", "part", "id", "mark")
NUMBERS = ("item", "amount", "weight", "partition")
STREAMS = ("orders", "shipments", "clicks", "web", "app", "shop", "log")
OPERATORS = ("totals", "visits", "daily", "later", "paired", "whole", "per_user")


@dataclass(frozen=True)
class Source:
    """What can be read. ``reference``: as a recipe names it. ``settings``: of a stream. Columns by what they hold."""

    reference: Any
    settings: Value | None = None
    texts: tuple[str, ...] = TEXTS
    numbers: tuple[str, ...] = NUMBERS
    times: tuple[str, ...] = ("at", "seen")
    offset: str | None = None
    origin: str | None = None
    panes: bool = False
    operator: bool = True

    @property
    def name(self) -> str:
        """What it is called."""
        return self.reference if isinstance(self.reference, str) else self.reference["of"]

    @property
    def plain(self) -> bool:
        """Whether it is a stream without a watermark of its own."""
        return not self.operator and isinstance(self.reference, str) and "cti_settings" not in (self.settings or {})

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that can be a key."""
        times = () if self.settings is None else (self.settings.get("event_time"),)
        order = (self.offset, self.origin, *times)
        return tuple(name for name in (*self.texts, *self.numbers) if name != "weight" and name not in order)

    def marked(self, *args: Any, **options: Any) -> Self:
        """A view with a watermark."""
        call = ({"args": list(args)} if args else {}) | ({"options": options} if options else {})
        return replace(self, reference={"of": self.name, "watermark": call})

    def timed_by(self, column: str) -> Self:
        """A view with another time."""
        return replace(self, reference={"of": self.name, "timed_by": column})


@dataclass
class Sketch:
    """Streams and operators so far."""

    dice: Dice
    streams: list[Value] = field(default_factory=list)
    operators: list[Value] = field(default_factory=list)

    @property
    def recipe(self) -> Value:
        """What has been drawn."""
        return {"streams": self.streams, "operators": self.operators}

    def stream(self, *, name: str | None = None, **settings: Any) -> Source:
        """A new stream; with a ``name`` it goes unnamed under that."""
        free = [word for word in STREAMS if word not in [stream["name"] for stream in self.streams]]
        stream = {"name": name or self.dice.pick(free), "settings": settings}
        self.streams.append(stream | ({"unnamed": True} if name else {}))
        times = tuple(time for time in ("at", "seen") if time != settings.get("event_time"))
        order_ = {"offset": settings.get("offset"), "origin": settings.get("origin")}
        return Source(stream["name"], settings, times=times, operator=False, **order_)

    def operator(self, verb: str, default: str, read: list[Source], *, by_call: bool = False, **parts: Any) -> str:
        """A new operator; its name. ``default``: what it is called unless it is named, by a call or by an option."""
        taken = [operator["name"] for operator in self.operators]
        named = default in taken or self.dice.chance(0.3)
        free = [word for word in OPERATORS if word not in taken]
        name = self.dice.pick(free) if named else default
        operator = {"name": name, "verb": verb, "reads": [source.reference for source in read], **parts}
        if named and (by_call or self.dice.chance(0.3)):
            calls = [*operator.get("calls", ()), tagged("call", "named", name)]
            self.dice.random.shuffle(calls)
            operator["calls"] = calls
        elif named:
            operator["options"] = operator.get("options", {}) | {"name": name}
        self.operators.append(
            {part: value for part, value in operator.items() if value not in ({}, []) or part == "keys"}
        )
        return name


def order(dice: Dice, share: float) -> Value:
    """Offset and origin of a stream, in this share of cases."""
    if not dice.chance(share):
        return {}
    return {"offset": "number"} | ({"origin": dice.pick(["partition", "part"])} if dice.chance(0.6) else {})


def usual(dice: Dice, *, ordered: float = 0.4, delay: float = 0.25) -> Value:
    """Settings of a stream with an event time."""
    delays = dice.options(delay, watermark_delay=["5 seconds", "1 minute", "10 minutes"])
    return {"event_time": dice.pick(["at", "at", "seen"])} | delays | order(dice, ordered)


def lifetime(dice: Dice, *, rows: bool = False, edges: bool = True) -> Value:
    """Lifetimes of a stream's events; with ``rows`` some may be CTIs."""
    if rows:
        return tagged("ts", "lifetime", shape_column="shape", **dice.options(0.5, end=["until"]))
    shape = dice.pick(["interval", None, "edge_start", "edge_end"] if edges else ["interval", None])
    if dice.chance(0.2) and edges:
        return tagged("ts", "lifetime", shape=dice.pick(["point", "edge_start"]))
    return tagged("ts", "lifetime", end="until", **({} if shape is None else {"shape": shape}))


def with_ctis(sketch: Sketch, settings: Value, *, name: str | None = None, from_stream: str | None = None) -> Source:
    """A stream with CTIs: by settings at the source, by those of the query, by both, or as rows."""
    dice = sketch.dice
    settings = {**settings, **order(dice, 1)}
    settings.pop("watermark_delay", None)
    kind = dice.pick(["source", "query", "both", "rows"] if from_stream is None else ["imports"])
    if kind == "rows" or dice.chance(0.4):
        settings["lifetime"] = settings.get("lifetime") or lifetime(dice, rows=kind == "rows")
    if kind in ("source", "both"):
        settings["cti_settings"] = cti_settings(dice, source=True)
    stream = sketch.stream(name=name, **settings)
    if kind == "source":
        return stream
    if kind == "rows":
        return stream.marked(tagged("watermark", "ctis"))
    return stream.marked(tagged("watermark", "ctis", cti_settings(dice, import_from=from_stream)))


def with_sources(dice: Dice, stream: Source) -> Source:
    """A view of a stream with CTIs whose sources are declared."""
    known = sources(dice, [] if stream.origin is None else [stream.origin])
    call = {} if isinstance(stream.reference, str) else stream.reference["watermark"]
    claims = call.get("args", [])
    if stream.origin and "generate" in str(claims) and dice.chance(0.5):
        known |= {"by": stream.origin, "sources": ["a", "b"]}
    if len(known.get("sources", ())) > 1 and "generate" in str(claims) and dice.chance(0.9):
        first, *others = known["sources"]
        by_source = {first: cti_settings(dice)} | {name: cti_settings(dice, import_from=first) for name in others}
        claims = [tagged("watermark", "ctis", by_source)]
    return stream.marked(*claims, **known) if known else stream


def with_watermark(dice: Dice, stream: Source) -> Source:
    """A view of a stream with a generator, or with sources alone."""
    known = sources(dice, ["part", "partition", "country"])
    if (stream.settings or {}).get("event_time") == "seen" and dice.chance(0.1):
        return stream.marked(tagged("watermark", "ingestion_time", "seen"), **known)
    if known and dice.chance(0.4):
        return stream.marked(**known)
    if dice.chance(0.3):
        return with_buffers(dice, stream)
    return stream.marked(generator(dice, columns=stream.times), **known)


def with_buffers(dice: Dice, stream: Source) -> Source:
    """A view of a stream that comes in buffers."""
    named = dice.options(0.5, sources=[["1", "2"], ["0", "1", "2"]], idle_timeout=["1 minute"])
    return stream.marked(buffers(dice), **named)
