"""Descriptions of jobs, kept with what a manifest holds of each: `descriptions.jsonl.gz`, 2,000 drawn ones, and
`examples.jsonl`, some by hand.

A line is ``{"recipe": …, "operators": […]}``. The **recipe** says in plain JSON what a user writes with streams and
verbs; the **operators** are what the manifest of its job holds, in order: ``{"name", "inputs", "configuration"}``.
Whatever makes a description of a recipe shows it to `manifest.operators_of`, which binds it and answers in that form.

**A recipe** is ``{"streams": [stream, …], "operators": [operator, …]}``. Operators are in the order in which a walk
from the last one meets them: inputs first, in the order of ``reads``, each once. The last operator is the job's.

**A stream** is ``{"name", "settings"}``: ``ts.stream(name, **settings)``. With ``"unnamed": true`` no name is
written, ``ts.stream(**settings)``, and ``name`` is what it is called then: ``input``, or a side that reads it. Any
stream has the columns of `columns.SCHEMA`.

**An operator** has

- ``name``: what others read it by, and what it is called in the job. It is *written* by ``name`` in ``options`` or by
  a call of ``named``; where neither is there it is the default of its verb.
- ``reads``: a list, of the name of a stream or of an earlier operator, or of a *view* of one,
  ``{"of": name, "watermark": {"args", "options"}}`` or ``{"of": name, "timed_by": column}``: that is
  ``x.watermark(*args, **options)`` and ``x.timed_by(column)``. Two equal views of a stream are one input.
- ``verb``, and what belongs to it:

| verb | is | has |
|---|---|---|
| ``aggregate`` | ``x.group_by(*keys).window(window).aggregate(**results)`` | ``keys``, ``window``, ``results`` |
| ``merge`` | ``ts.merge(…).sharing(*sharing).watermark(watermark).group_by(…)``, then as ``aggregate`` | the same,
  ``sides``, ``sharing``, ``watermark`` |
| ``union`` | ``ts.union(…, **options)`` | ``sides``, ``options`` |
| ``join``, ``join_sessions``, ``join_lifetimes`` | ``x.join(y, **options)`` | ``options`` |
| ``deduplicate``, ``shift_time`` | ``x.deduplicate(**options)`` | ``options`` |

  What is absent is not written: without ``window`` no ``.window``, without ``sharing`` no ``.sharing``.
  With ``sides``, one for each of ``reads``, these are keywords: ``ts.union(web=x, app=y)``; without it the streams
  are positional, and sides are called as they are.
- ``calls``: methods of what the verb made, in order: ``{"call", "args", "options"}``. A later call of a method
  replaces an earlier one.

**Values** that are no JSON are tagged; ``args`` and ``options`` may be absent:

| value | is |
|---|---|
| ``{"agg": name, "args", "options"}`` | ``ts.agg.name(*args, **options)``; so ``trigger`` and ``watermark`` |
| ``{"window": name, …}``, ``{"ts": name, …}`` | ``ts.name(*args, **options)`` |
| ``{"function": name}`` | what is called so in `functions` |
| ``{"type": text}`` | an Arrow type, by `tidestate.statestore.spec.arrowtypes.parse_type` |
| a list | a tuple |
| another object | a dictionary |

`values.value` makes these of a recipe, where it gets what ``agg``, ``trigger`` and so on are; `words` counts the
words they use, `written` writes a recipe with streams and verbs. They were drawn, and what is kept of them was made,
by the functions that described jobs before there were streams, which are gone.

How the grammar is read, where more than one reading is possible:

1. Operators are kept as the manifest has them, that is bound: times of panes that nobody named (``pane_time``, or
   ``timestamp``), the default lateness, ``signed`` and the lateness of a deduplication are there. ``inputs`` of a
   job of one operator are the names of its streams: ``input``, its sides', or their own.
2. The time of panes that no ``timed_by`` names goes without saying for windows that read them; joins, merges,
   unions, deduplications and shifts name it: ``pane_time``, or ``timestamp``. Behind joins, and unions, windows
   name ``time``, also those that rows name. Windows of offsets store the event time of their stream, if it has one.
3. With a generator on a stream or in front of sides, the delay of the stream has no effect, and is stored as 0. A
   ``.watermark`` without a generator is ``bounded`` by the stream's own delay, and so stored: the generator has the
   delay, the operator 0. With CTIs both are 0. A stream with ``cti_settings`` keeps its CTIs where a ``.watermark``
   names no generator.
4. ``bounded(delay)`` is of the event time of the stream; in front of sides of ``time``, where each side is a source
   that holds the watermark from the start, unless ``over`` says ``by=``.
5. Idle timeouts of streams in front of sides: one ``idle_timeout`` if all have the same, else ``own_timeouts`` of
   the sides that have one.
6. CTIs of sides are stored by the name of the side, also where all have the same settings; those of one stream, or
   over a merge, under the empty name, or by source where ``ctis`` gets a dictionary. ``cti_settings`` of a stream
   are ``at_source``. ``import_from`` of a stream in front of sides names a stream, and its side is stored. A side
   that reads an operator has no settings, and names no offset and no origin where other sides have CTIs.
7. Offsets of a join that does not say ``identity=True``: with CTIs those of all sides that read streams; else that
   of a side whose own window is of offsets or whose retention counts offsets, and of no other. Of a session join
   those of both, with ``offsets``. An origin goes with its offset.
8. ``accumulate(columns={side: […]}, lift={side: …})``: the columns of each lift, as the merged stream names them.
   Its configuration reads ``side``, then those of ``left``, then those of ``right``.
9. ``side(retain=Retention(offsets=n))`` is a number of offsets, ``messages(retain=Retention(messages=n))`` one of
   messages. A span alone is a retention of that span.
10. Shared columns of a merge are its keys, those of ``.sharing``, and the origin and offset, in this order; the end
    of lifetimes and the columns of buffers are in ``.sharing``. ``future_tolerance`` of a merge is that of its
    streams, which is the same for all, unless ``allowed_lateness`` has one. Its ``.watermark`` gets one value, as
    the option of joins.
11. ``lifetime`` of a stream: its end is that of windows ``of="lifetime"`` and of time shifts, which store it with a
    duration or without; with CTIs, and in joins by lifetime, its shapes count too. Without ``shape`` it is an
    interval where there is an ``end``, else a point. A shift that names another ``end`` makes intervals until then of
    its rows.
12. ``each_element`` and ``each_batch`` are stored as one; the former sets ``per_element``, as
    ``evaluate="element"`` does. A trigger that is left out is ``each_batch``.
"""
