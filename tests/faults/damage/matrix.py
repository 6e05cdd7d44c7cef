"""Each file of each root, each fault of it, and what verbs and starts answer then."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.faults.damage.answers import (
    GOES_ON,
    SAME,
    UNNOTICED,
    Foreign,
    Refused,
    answered,
    is_wrong,
    outcome,
)
from tests.faults.damage.caches import CACHES
from tests.faults.damage.harm import FAULTS, Change, Tree, apply, changes
from tests.faults.damage.subjects import STORES, SUBJECTS, Store, Subject, store_of
from tests.faults.damage.verbs import printed, replaced
from tests.helpers.command import FORKS
from tests.helpers.process import SCRATCH

ROOTS = {one.name: one for one in (*SUBJECTS, *CACHES)}
WAY_OUT, NO_WAY = "way out", "none!"
VERIFY = "verify data"
FILES = 4
"""Of a kind with many files: the first one, and others at equal distances."""
STRIDE = 29
"""A prime number: where fewer verbs are asked than there are cases, those without any are spread."""
LONGEST_S = 120
"""For all answers of one case."""
_NAMED = {
    "repair": re.compile(r"newest-good|older checkpoint|go back"),
    "resync": re.compile(r"resync-spark|start again|is rewritten"),
    "restore": re.compile(r"restore|put back|put it back|a good copy"),
}
"""The ways out, and how an error names them."""


@dataclass(frozen=True)
class Case:
    """A damaged file: of which root and kind, which one of its kind, which form of the fault; ``main``: whether it
    is the first of this kind and fault.
    """

    root: str
    kind: str
    fault: str
    file: int = 0
    form: int = 0
    main: bool = False


@dataclass(frozen=True)
class Chosen:
    """Which cases: these ``faults``; of each kind so many ``files``, 0 for all; of each kind and fault the ``first``
    case only. Of the verbs one in ``turns`` is asked in each case, another one in the next; one in ``rest`` where
    another case of this kind and fault has been asked before; a start, where there is nothing else to ask, in one of
    ``sole`` cases. ``kinds``: of files, by default all.
    """

    faults: tuple[str, ...] = FAULTS
    stores: tuple[Store, ...] = STORES
    files: int = FILES
    first: bool = False
    turns: int = 1
    rest: int = 1
    kinds: tuple[str, ...] = ()
    sole: int = 1


Answers = dict[str, str]
_Asked = Callable[[], Any]


class Field:
    """One root that is damaged again and again, in a folder of its own, and one of the same job on other events."""

    def __init__(self, subject: Subject, folder: Path, chosen: Chosen) -> None:
        self.subject, self._chosen = subject, chosen
        self._work, self._pristine, twin = folder / "work", folder / "pristine", folder / "twin"
        for at, seed in ((self._work, 0), (twin, 1)):
            at.mkdir()
            subject.make(at, seed)
        replaced(self._pristine, self._work)
        self._tree = Tree(self._pristine / subject.below, subject.kinds)
        self._twin = Tree(twin / subject.below, subject.kinds)
        self._root, self._caches, self._starts = str(self._work / "root"), folder / "caches", 0
        self._whole: dict[str, Any] = {}

    def cases(self) -> Iterator[tuple[Case, Change]]:
        kinds = dict.fromkeys(kind for kind, _ in self.subject.kinds)
        for kind in (kind for kind in kinds if not self._chosen.kinds or kind in self._chosen.kinds):
            for fault in self._chosen.faults:
                names = list(enumerate(self._tree.of(kind)))
                few = self._chosen.files and not self.subject.whole
                every = -(-len(names) // self._chosen.files) if few else 1
                found = (
                    (Case(self.subject.name, kind, fault, number, form), change)
                    for number, name in names[:: max(1, every)]
                    for form, change in enumerate(changes(fault, self._tree, name, self._twin))
                )
                for first, change in islice(found, 1):
                    yield replace(first, main=True), change
                yield from () if self._chosen.first else found

    def answers(self, number: int, case: Case, change: Change) -> Answers:
        """What is answered where files are so; ``number`` says whose turn it is."""
        found, refused = {}, None
        turns = self._chosen.turns if case.main else self._chosen.rest
        turns = turns if self.subject.readers else self._chosen.sole
        asked = self._names[-number * STRIDE % turns :: turns]
        self._ask_of_the_whole(asked)
        for name, ask in self._asked(change) if asked else ():
            if name not in asked:
                continue
            one = answered(ask)
            found[name] = outcome(one, self._whole[name])
            if isinstance(one, Refused) and found[name] != SAME and name.startswith("start "):
                refused = refused or (name, one)
        if refused is not None:
            found[WAY_OUT] = self._way_out(change, *refused)
        failed = [name for name, word in found.items() if word not in (SAME, GOES_ON) and name != VERIFY]
        if found.get(VERIFY) == SAME and failed:
            found[VERIFY] = UNNOTICED
        return found

    @cached_property
    def _names(self) -> list[str]:
        """Of all that may be asked, in this order."""
        return [name for name, _ in self._asked({})]

    def _ask_of_the_whole(self, asked: list[str]) -> None:
        """What these answer where nothing is damaged."""
        if missing := {*asked} - self._whole.keys():
            self._whole |= {name: answered(ask) for name, ask in self._asked({}) if name in missing}
            wrong = [(name, found) for name, found in self._whole.items() if isinstance(found, Foreign)]
            assert not wrong, wrong

    def _asked(self, change: Change) -> Iterator[tuple[str, _Asked]]:
        """Readers one after the other; each verb that writes gets the root damaged afresh."""
        self._damage(change)
        root, subject = self._root, self.subject
        for name, reader in subject.readers.items():
            yield name, partial(reader, root)
        for store in dict.fromkeys(one for one in self._chosen.stores if one in subject.stores) or subject.stores:
            yield f"start {store}", self._afresh(change, lambda store=store: self._goes_on(store))  # type: ignore[misc]
        for name, restart in subject.restarts.items():
            yield name, self._afresh(change, partial(restart, root))
        for place, (name, act) in enumerate(subject.changes.items()):
            turn = self._chosen.stores[place % len(self._chosen.stores)]  # the same one each time
            then = partial(act, root, subject.goes_on)
            yield name, self._afresh(change, lambda then=then, turn=turn: then(self._store(turn)))  # type: ignore[misc]

    def _afresh(self, change: Change, act: _Asked) -> _Asked:
        def asked() -> Any:
            self._damage(change)
            return act()

        return asked

    def _goes_on(self, store: Store) -> Any:
        return self.subject.goes_on(self._root, self._store(store))

    def _store(self, name: Store) -> Any:
        """A store on a host without caches."""
        self._starts += 1
        return store_of(name, self._caches / str(self._starts))

    def _damage(self, change: Change) -> None:
        replaced(self._work, self._pristine)
        apply(self._work / self.subject.below, change)

    def _way_out(self, change: Change, start: str, error: Refused) -> str:
        """The first way that the error names after which the job goes on as if nothing had been."""
        for way in (way for way, named in _NAMED.items() if named.search(error.text)):
            self._damage(change)
            if way == "restore":
                apply(self._work / self.subject.below, {name: self._tree.read(name) for name in change})
            else:
                option = self.subject.way.split() if way == "repair" else ["--resync-spark"]
                repaired = answered(partial(printed, self._root, "repair", *option, "--confirm", "--force"))
                if isinstance(repaired, Refused | Foreign):
                    continue
            then = answered(partial(self._goes_on, start.removeprefix("start ")))  # type: ignore[arg-type]
            if outcome(then, self._whole[start]) in (SAME, GOES_ON):
                return way
        return NO_WAY


def field(subject: Subject, chosen: Chosen) -> Iterator[tuple[Case, Answers]]:
    """All cases of a root, in this process."""
    with tempfile.TemporaryDirectory(prefix="damage-", dir=SCRATCH) as folder:
        made = Field(subject, Path(folder), chosen)
        for number, (case, change) in enumerate(list(made.cases())):
            yield case, made.answers(number, case, change)


def isolated(subject: str, chosen: Chosen) -> Iterator[int | tuple[Case, Answers]]:
    """As `field`, in a process of its own, so that one that dies or hangs is an answer. First how many cases."""
    done, total = 0, None
    while total is None or done < total:
        receiver, sender = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=_work, args=(sender, subject, chosen, done), daemon=True)
        process.start()
        sender.close()
        case: Case | None = None
        try:
            while total is None or done < total:
                if not receiver.poll(LONGEST_S):
                    process.kill()
                    raise TimeoutError
                got = receiver.recv()
                if isinstance(got, int):
                    total = total or got
                    yield from [got] if not done else []
                elif isinstance(got, Case):
                    case = got
                else:
                    done += 1
                    yield got
        except (EOFError, TimeoutError) as ended:
            process.join()
            if case is None:
                raise RuntimeError(f"the root of {subject} cannot be made") from ended
            how = "hangs" if isinstance(ended, TimeoutError) else f"died {process.exitcode}"
            done += 1
            yield case, {"process": f"{how}!"}
        process.join()


def _work(sender: Connection, subject: str, chosen: Chosen, begin: int) -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="damage-", dir=SCRATCH) as folder:
        made = Field(ROOTS[subject], Path(folder), chosen)
        all_cases = list(made.cases())
        sender.send(len(all_cases))
        for number, (case, change) in enumerate(all_cases):
            if number >= begin:
                sender.send(case)
                sender.send((case, made.answers(number, case, change)))


def wrong(answers: Answers) -> Answers:
    """The outcomes that never may be."""
    return {name: word for name, word in answers.items() if is_wrong(word)}
