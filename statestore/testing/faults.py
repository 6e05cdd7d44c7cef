"""Storage that fails, or a process that dies, at any one call: wrap the objects and loop over the calls.

calls = FaultyObjects(objects)
work(calls)  # nothing fails: how many calls are there?
for number in range(1, calls.calls + 1):
    faulty = FaultyObjects(fresh_objects(), number, crash=True, when="after")
    with pytest.raises(Crash):
        work(faulty)
    check_what_is_there()
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any, Literal, TypeVar, cast

import pyarrow as pa

from tidestate.statestore.errors import CommitUnknownError, UnavailableError
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.sink import ObjectSink

When = Literal["before", "during", "after"]
_T = TypeVar("_T")


class Crash(BaseException):
    """The process died here. Not an `Exception`: nothing may catch it and go on."""


def _counted(method: Callable[..., _T]) -> Callable[..., _T]:
    """A method of `FaultyObjects` that counts as one call."""
    name = method.__name__

    def call(self: FaultyObjects, path: str, *args: Any, **options: Any) -> Any:
        return self._call(f"{name} {path}", lambda: getattr(self._inner, name)(path, *args, **options))

    return call


class FaultyObjects(Objects):
    """Objects whose call number ``at`` (from 1) raises, or with ``crash`` ends the process, as far as they can tell.

    ``when`` says whether that call has taken effect: ``before``, ``after``, or ``during``, where a ``put`` leaves
    half of its bytes (its promise allows that) and other calls have done nothing. Without ``crash`` the error is
    what the call may raise: `UnavailableError`, and `CommitUnknownError` for a ``create`` that took effect. Later
    calls succeed then; after a crash every later call raises `Crash` too, and a ``writer`` is left as it stood.

    Calls are counted in ``calls`` and named in ``log``: those of `Objects` that touch storage, each write to a sink
    and its end, and each read of an opened input.
    """

    def __init__(
        self, objects: Objects, at: int | None = None, *, crash: bool = False, when: When = "before"
    ) -> None:
        self._inner = objects
        self._at, self._crash, self._when = at, crash, when
        self._left_open: list[AbstractContextManager[ObjectSink]] = []
        self._lock = Lock()
        self.crashed = False
        self.log: list[str] = []
        self.root = objects.root
        self.bases = objects.bases

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return len(self.log)

    def at(self, number: int) -> Objects:
        return self if number == 0 else self._inner.at(number)

    @property
    def atomic_create(self) -> str:
        return self._inner.atomic_create

    @property
    def tells_age(self) -> bool:
        return self._inner.tells_age

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        half = memoryview(data)[: len(memoryview(data)) // 2].tobytes()
        self._call(f"put {path}", lambda: self._inner.put(path, data), lambda: self._inner.put(path, half))

    note = _counted(Objects.note)
    create = _counted(Objects.create)
    read = _counted(Objects.read)
    map = _counted(Objects.map)
    local_version = _counted(Objects.local_version)
    size = _counted(Objects.size)
    exists = _counted(Objects.exists)
    names = _counted(Objects.names)
    age_us = _counted(Objects.age_us)
    changed_us = _counted(Objects.changed_us)
    clear = _counted(Objects.clear)
    linked = _counted(Objects.linked)
    unfinished = _counted(Objects.unfinished)
    settle = _counted(Objects.settle)
    delete = _counted(Objects.delete)
    move = _counted(Objects.move)
    forget = _counted(Objects.forget)

    @contextmanager
    def writer(self, path: str) -> Iterator[ObjectSink]:
        manager = self._inner.writer(path)
        sink = self._call(f"writer {path}", manager.__enter__)
        try:
            yield cast(ObjectSink, _CountedSink(sink, self, path))
        except BaseException as error:
            if self.crashed:
                self._left_open.append(manager)  # a dead process tidies nothing up
            else:
                manager.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            self._call(f"end of writer {path}", lambda: manager.__exit__(None, None, None))
        except BaseException as error:
            if self._when == "after":
                raise
            if self.crashed:
                self._left_open.append(manager)
            else:
                manager.__exit__(type(error), error, error.__traceback__)
            raise

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        file = self._call(f"open_input {path}", lambda: self._inner.open_input(path, size))
        return pa.PythonFile(_CountedInput(file, self, path), mode="r")

    def locate(self, path: str) -> str:
        return self._inner.locate(path)

    def url(self, path: str) -> str:
        return self._inner.url(path)

    def _call(self, name: str, effect: Callable[[], _T], half: Callable[[], Any] | None = None) -> _T:
        if self.crashed:
            raise Crash(f"the process is dead: {name}")
        with self._lock:
            self.log.append(name)
            number = len(self.log)
        if number != self._at:
            return effect()
        if self._when == "after":
            effect()
        elif self._when == "during" and half is not None:
            half()
        if self._crash:
            self.crashed = True
            raise Crash(f"call {self._at}, {self._when} its effect: {name}")
        raise self._error(name)

    def _error(self, name: str) -> Exception:
        facts = {"call": self._at, "name": name, "when": self._when}
        if name.startswith("create ") and self._when == "after":
            return CommitUnknownError("made, but without a reply (on purpose)", code="commit-unknown", **facts)
        return UnavailableError("storage failed (on purpose)", code="storage", **facts)


class _CountedSink:
    """A sink whose writes count."""

    def __init__(self, sink: ObjectSink, objects: FaultyObjects, path: str) -> None:
        self._sink, self._objects, self._path = sink, objects, path

    def write(self, data: Any) -> int:
        return self._objects._call(f"write {self._path}", lambda: self._sink.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


class _CountedInput(io.RawIOBase):
    """An input whose reads count. It has no ``read_buffer``, which pyarrow would call past us."""

    def __init__(self, file: pa.NativeFile, objects: FaultyObjects, path: str) -> None:
        super().__init__()
        self._file, self._objects, self._path = file, objects, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        count = None if size is None or size < 0 else size
        return self._objects._call(f"input {self._path}", lambda: self._file.read(count))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()
