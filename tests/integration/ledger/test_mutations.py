"""The state machine can fail: each of these mistakes, made in one place of the Lua, is seen by it.

Only by what it checks after its steps: a mutation that the operations' own tests would see is no proof here.
"""

from dataclasses import dataclass

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_gpulease.ledger import scripts
from tests.integration.ledger.machine import LedgerMachine
from tests.integration.ledger.test_state_machine import UNHURRIED


@dataclass(frozen=True)
class Mutation:
    """One mistake: in every script that has the old text, or in the named one."""

    old: str
    new: str
    only: str = ""


MUTATIONS = {
    "a_claim_overlooks_a_lease": Mutation(
        "redis.call('EXISTS', key('lease', gpu), key('want', gpu), key('claim', gpu)) == 0",
        "redis.call('EXISTS', key('want', gpu), key('claim', gpu)) == 0",
    ),
    "a_claim_overlooks_a_lapsed_run": Mutation(
        "redis.call('EXISTS', key('lease', gpu), key('want', gpu), key('claim', gpu)) == 0",
        "redis.call('EXISTS', key('lease', gpu), key('want', gpu)) == 0",
    ),
    "release_deletes_anybodys_lease": Mutation(
        "if redis.call('GET', key('lease', gpu)) == token then\n    redis.call('DEL', key('lease', gpu))",
        "if redis.call('GET', key('lease', gpu)) then\n    redis.call('DEL', key('lease', gpu))",
        only="release",
    ),
    "start_does_not_compare_tokens": Mutation(
        "t[2] ~= token or redis.call('HGET', key('claim', gpu), 'token') ~= token", "not t[2]", only="start"
    ),
    "start_lets_a_second_request_run": Mutation("if t[1] ~= 'claimed' and t[3] ~= nonce then", "if false then"),
    "start_overlooks_a_stranger": Mutation("or (lease and lease ~= token) then", "then"),
    "requeue_forgets_to_uncount": Mutation("if not delivered then", "if false then"),
    "reap_grants_no_grace": Mutation("if grace_until > NOW then", "if false then"),
    "reap_does_not_wait_for_the_deadline": Mutation("== token) or deadline > NOW then", "== token) then"),
    "hold_does_not_know_what_has_ended": Mutation(
        "if redis.call('EXISTS', name) == 1 or redis.call('ZSCORE', ENDED, ticket) then",
        "if redis.call('EXISTS', name) == 1 then",
    ),
    "taken_out_of_the_line_and_not_of_its_index": Mutation("redis.call('ZREM', key('waiting', t[1]), ticket)", ""),
    "back_in_line_behind_everybody": Mutation(
        "put_in_line(ticket, tonumber(redis.call('HGET', name, 'score')))", "put_in_line(ticket)"
    ),
    "a_retry_does_not_supersede": Mutation(
        "redis.call('HSET', key('ticket', run_ticket), 'superseded', 1)", "redis.call('PING')"
    ),
    "a_run_regains_what_a_stranger_took": Mutation(
        "local is_open = (not lease and", "local is_open = (lease ~= token and"
    ),
    "a_run_comes_back_although_it_started_elsewhere": Mutation(
        "t[2] == token, t[2] ~= token and t[5] == token", "t[2] == token, t[2] ~= token"
    ),
    "two_claims_in_one_call_share_a_token": Mutation(
        "string.format('%s-%s-%.0f', seed, gpu, fence)", "string.format('%s-%.0f', seed, fence)"
    ),
    "fences_stand_still": Mutation(
        "(tonumber(redis.call('GET', key('fence', gpu))) or 0) + 1, NOW)", "0, NOW - NOW % 3600000)"
    ),
    "a_gpu_given_back_keeps_its_lease": Mutation(
        "redis.call('DEL', key('lease', gpu))", "redis.call('PING')", only="give_back"
    ),
    "what_is_deferred_counts": Mutation(
        "redis.call('HINCRBY', name, 'deliveries', -1)", "redis.call('PING')", only="defer"
    ),
    "what_was_deferred_stands_behind_everybody": Mutation(
        "put_in_line(ticket, tonumber(redis.call('HGET', key('ticket', ticket), 'score') or nil))",
        "put_in_line(ticket)",
        only="promote",
    ),
    "cancel_overlooks_a_claim": Mutation("unclaim(one[2], route)", "redis.call('PING')", only="cancel"),
    "a_bump_gives_away_who_came_first": Mutation("+ tonumber(t[4]) % PRIORITY_STEP", "+ next_arrival()", only="bump"),
    "a_bump_moves_nobody": Mutation(
        "redis.call('ZADD', line_of(t[2], t[3]), redis.call('HGET', name, 'score'), ticket)",
        "redis.call('PING')",
        only="bump",
    ),
    "force_leaves_the_lease": Mutation("redis.call('DEL', key('lease', gpu))", "redis.call('PING')", only="force"),
    "a_forced_run_comes_back": Mutation("== 'forced' then", "== 'never' then", only="reap"),
    "a_tail_does_not_live_by_its_heartbeat": Mutation(
        "prolong_tail(gpu)\n  return", "redis.call('ZREM', DEADLINES, gpu)\n  return", only="renew"
    ),
    "a_drained_gpu_keeps_what_it_did_not_start": Mutation(
        "if claim[2] == 'claimed' then", "if false then", only="drain"
    ),
    "a_quarantine_closes_nothing": Mutation(" or (closed[3] and 'quarantine') or nil", " or nil"),
    "a_stray_stays_where_it_is": Mutation("redis.call('ZREM', prefix .. place, ticket)", "redis.call('PING')"),
    "the_dead_are_alive": Mutation("return count.err ~= nil or tonumber(count[2]) > 0", "return true"),
}


def mutated(mutation):
    """The scripts that have the mistake; the text must be there, or the mutation proves nothing."""
    texts = {name: scripts.source(name).text for name in scripts.names() if mutation.only in ("", name)}
    found = {name: text.replace(mutation.old, mutation.new) for name, text in texts.items() if mutation.old in text}
    assert found, f"no script has {mutation.old!r}"
    return found


# It ends with the first that sees the mistake, mostly within 300: the server's clock makes no two runs alike.
MOST_EXAMPLES = 3000


def run(url, texts, examples):
    """What is seen is seen because of the mistake: without one, the last test here, nothing is."""
    machine = type("Mutated", (LedgerMachine,), {"url": url, "scripts": texts})
    options = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        database=None,
        suppress_health_check=UNHURRIED,
        phases=[Phase.generate],  # any failure will do, the shortest is of no interest
        print_blob=False,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(seed(1)(machine), settings=options)


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_it_is_seen(redis_url, mutation):
    texts = mutated(mutation)
    with pytest.raises(AssertionError):
        run(redis_url, texts, MOST_EXAMPLES)


@pytest.mark.long
def test_without_a_mistake_nothing_is_seen(redis_url):
    run(redis_url, {}, examples=300)
