"""What always holds, looked at from outside: the invariants of the ledger, for tests after every step."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from celery_gpulease.ledger.bare import OUR_TOKEN
from celery_gpulease.ledger.connection import in_our_words
from celery_gpulease.ledger.picture import Picture, read_picture
from celery_gpulease.ledger.turns import host_and_pool
from celery_gpulease.ledger.views import PRIORITY_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_gpulease.ledger.ledger import Ledger

#: A lease's TTL and its entry in `deadlines` are written together and read one after the other.
TOLERANCE_MS: Final = 1000

_GIVEN: Final = ("claimed", "started", "tail")  # the states in which a ticket has a GPU
_WAITING: Final = ("pending", "scheduled")
_STATES: Final = (*_WAITING, *_GIVEN, "ending")


def inconsistencies(ledger: Ledger) -> list[str]:
    """Names everything in the ledger that should never be, in words; an empty list when all is well.

    Reads every key under our prefix, in pages. Exact while nobody writes: on a busy ledger only what two looks in a
    row agree on is worth a word.

    Allowed, since others cause it and the next look corrects it: a lease of ours that is gone before its deadline
    (deleted by hand) or whose deadline has passed (nobody reaped it yet); in `free:<pool>` a GPU that a stranger has
    leased or wants, or whose worker is gone; a free GPU that is missing there.
    """
    with in_our_words("check"):
        picture = read_picture(ledger)
    checks: tuple[Callable[[Picture], Iterator[str]], ...] = (
        _unknown_keys,
        _tickets,
        _members,
        _scheduled,
        _claims,
        _leases,
        _free_gpus,
        _registry,
        _numbers,
    )
    return [found for check in checks for found in check(picture)]


def _unknown_keys(picture: Picture) -> Iterator[str]:
    for key in picture.unknown:
        yield f"{key} is no key of ours"


def _tickets(picture: Picture) -> Iterator[str]:
    places = _places(picture)
    for ticket, t in picture.all("ticket").items():
        state = t.get("state")
        who = f"ticket {ticket} ({state})"
        if state not in _STATES:
            yield f"{who} is in no state that we know"
            continue
        if places[ticket] != [_place_of(t)]:
            yield f"{who} belongs in {_place_of(t)}, and is in {places[ticket]}"
        if ticket in picture.one("ended"):
            yield f"{who} has ended before"
        if (ticket in picture.all("message")) == bool(host_and_pool(t.get("pin", ""))):  # a program has none
            yield f"{who} has {'a' if ticket in picture.all('message') else 'no'} message"
        if ticket not in picture.one("task", t.get("task_id", "")):
            yield f"{who} is not in task:{t.get('task_id')}"
        yield from _indexes(picture, ticket, t, who)
        yield from _fields(t, who)


def _places(picture: Picture) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for kind in ("pending", "pinned", "scheduled", "ending"):
        for name, members in picture.all(kind).items():
            for ticket in members:
                places[ticket].append(f"{kind}:{name}" if name else kind)
    for gpu, claim in picture.all("claim").items():
        places[claim.get("ticket")].append(f"claim:{gpu}")
    return places


def _place_of(t: dict[str, str]) -> str:
    state = t["state"]
    if state == "pending":
        return f"pinned:{t['pin']}" if t.get("pin") else f"pending:{t.get('pool')}"
    return f"claim:{t.get('gpu')}" if state in _GIVEN else state


def _indexes(picture: Picture, ticket: str, t: dict[str, str], who: str) -> Iterator[str]:
    state, expires_ms = t["state"], int(t.get("expires_ms", 0))
    is_pinned = state == "pending" and t.get("pin")
    for pool, members in picture.all("pinned_in").items():
        if ticket in members and not (is_pinned and pool == t.get("pool")):
            yield f"{who} is wrongly in pinned_in:{pool}"
    if is_pinned and ticket not in picture.one("pinned_in", t.get("pool", "")):
        yield f"{who} is missing in pinned_in:{t.get('pool')}"
    if state == "pending" and _place_of(t) not in picture.one("lines"):
        yield f"{_place_of(t)} is missing in lines"
    expected = float(expires_ms) if expires_ms and state in _WAITING else None
    if picture.one("expiring").get(ticket) != expected:
        yield f"{who} is in expiring by {picture.one('expiring').get(ticket)}, not {expected}"
    if state == "pending":
        kind, _, name = _place_of(t).partition(":")
        score = picture.one(kind, name).get(ticket)
        if score is not None and score != float(t.get("score", -1)):
            yield f"{who} stands in its line by {score}, and its place is {t.get('score')}"


def _fields(t: dict[str, str], who: str) -> Iterator[str]:
    for count in ("deliveries", "returns"):
        if int(t.get(count, 0)) < 0:
            yield f"{who} has {t.get(count)} {count}"
    has_token = "token" in t
    if has_token != (t["state"] in _GIVEN):
        yield f"{who} has {'a' if has_token else 'no'} token"


def _members(picture: Picture) -> Iterator[str]:
    tickets = picture.all("ticket")
    for kind in ("pending", "pinned", "pinned_in", "scheduled", "expiring", "ending", "task"):
        for name, members in picture.all(kind).items():
            for ticket in members:
                if ticket not in tickets:
                    yield f"{kind}:{name} has {ticket}, and there is no such ticket"
                elif kind == "task" and tickets[ticket].get("task_id") != name:
                    yield f"task:{name} has ticket {ticket} of task {tickets[ticket].get('task_id')}"
    for kind in ("message", "returned"):
        for ticket in picture.all(kind):
            if ticket not in tickets:
                yield f"{kind}:{ticket} belongs to no ticket"


def _scheduled(picture: Picture) -> Iterator[str]:
    tickets = picture.all("ticket")
    counted = {pool: int(n) for pool, n in picture.one("scheduled_count").items() if int(n)}
    actual: dict[str, int] = defaultdict(int)
    for ticket in picture.one("scheduled"):
        actual[tickets.get(ticket, {}).get("pool")] += 1
    if counted != actual:
        yield f"scheduled_count says {counted}, and scheduled has {dict(actual)}"


def _claims(picture: Picture) -> Iterator[str]:
    tokens: dict[str, str] = {}
    for gpu, claim in picture.all("claim").items():
        t = picture.one("ticket", claim.get("ticket", ""))
        found = (t.get("gpu"), t.get("token"), t.get("state"))
        expected = (gpu, claim.get("token"), claim.get("state"))
        if found != expected:
            yield f"claim:{gpu} says {expected}, and its ticket {claim.get('ticket')} {found}"
        if int(claim.get("fence", 0)) > int(picture.one("fence", gpu) or 0):
            yield f"fence:{gpu} is behind its claim's {claim.get('fence')}"
        if other := tokens.get(claim.get("token", "")):
            yield f"claim:{gpu} and claim:{other} have the same token"
        tokens[claim.get("token", "")] = gpu
        if gpu not in picture.one("deadlines"):
            yield f"claim:{gpu} ({claim.get('state')}) is missing in deadlines"
    for gpu in picture.one("deadlines"):
        if gpu not in picture.all("claim"):
            yield f"deadlines has {gpu}, which has no claim"


def _leases(picture: Picture) -> Iterator[str]:
    for gpu, token in picture.all("lease").items():
        claim = picture.one("claim", gpu)
        if claim.get("token") != token:
            if OUR_TOKEN.fullmatch(token):
                yield f"lease:{gpu} is ours, and its claim is {claim or 'gone'}"
            continue
        ttl = picture.ttls["lease"][gpu]
        if claim.get("state") == "tail":
            yield f"lease:{gpu} is held for a tail"
        elif ttl < 0:
            yield f"lease:{gpu} is ours and has no TTL"
        elif abs(picture.one("deadlines").get(gpu, 0) - picture.now_ms - ttl) > TOLERANCE_MS:
            off = picture.one("deadlines").get(gpu, 0) - picture.now_ms
            yield f"lease:{gpu} ends in {ttl} ms, and its deadline is in {off} ms"


def _free_gpus(picture: Picture) -> Iterator[str]:
    for pool, members in picture.all("free").items():
        for gpu in members:
            who = f"free:{pool} has {gpu}, which"
            if pool not in picture.one("device", gpu).get("pools", "").split(","):
                yield f"{who} does not serve it"
            if claim := picture.one("claim", gpu):
                yield f"{who} is claimed for {claim.get('ticket')}"
            if closed := picture.one("closed", gpu).keys() & {"drain", "closing", "quarantine", "device"}:
                yield f"{who} is closed: {sorted(closed)}"


def _registry(picture: Picture) -> Iterator[str]:
    devices = picture.all("device")
    for single, of_device in (("gpus", "ttl_ms"), ("heartbeats", "heartbeat_ms")):
        expected = {gpu: float(device.get(of_device, -1)) for gpu, device in devices.items()}
        if picture.one(single) != expected:
            yield f"{single} says {picture.one(single)}, and the devices {expected}"
    for name, gpu in picture.one("names").items():
        if gpu not in devices:
            yield f"names has {name} for {gpu}, which is not registered"
    for gpu, ttl in picture.ttls["worker"].items():
        if ttl < 0:
            yield f"worker:{gpu} has no TTL"


def _numbers(picture: Picture) -> Iterator[str]:
    last = int(picture.one("arrival") or 0)
    for ticket, t in picture.all("ticket").items():
        if int(t.get("score", 0)) % PRIORITY_STEP > last:
            yield f"ticket {ticket} arrived after the last arrival, {last}"
