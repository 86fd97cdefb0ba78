"""Mistakes in the Lua, each in one place, and a pytest plugin that makes one of them (`MUTATION` names it)."""

import os
from dataclasses import dataclass, replace
from functools import cache

from celery_gpulease.ledger import scripts

MUTATION = "GPULEASE_TEST_MUTATION"


@dataclass(frozen=True)
class Mutation:
    """One mistake: in every script that has the old text, or in the named one; and the test that sees it."""

    old: str
    new: str
    seen_by: str
    only: str = ""


MUTATIONS = {
    "a_claim_overlooks_a_lease": Mutation(
        "redis.call('EXISTS', key('lease', gpu), key('want', gpu), key('claim', gpu)) == 0",
        "redis.call('EXISTS', key('want', gpu), key('claim', gpu)) == 0",
        "ledger/test_claim.py::test_a_lease_without_a_ttl_is_respected",
    ),
    "a_claim_overlooks_a_lapsed_run": Mutation(
        "redis.call('EXISTS', key('lease', gpu), key('want', gpu), key('claim', gpu)) == 0",
        "redis.call('EXISTS', key('lease', gpu), key('want', gpu)) == 0",
        "ledger/test_claim.py::test_a_lapsed_lease_of_a_run_is_no_free_gpu",
    ),
    "a_gpu_is_handed_over_against_a_wish": Mutation(
        "redis.call('EXISTS', key('want', gpu), key('claim', gpu)) == 0",
        "redis.call('EXISTS', key('claim', gpu)) == 0",
        "ledger/test_release.py::test_where_a_gpu_must_not_be_handed_over_its_lease_goes",
    ),
    "release_deletes_anybodys_lease": Mutation(
        "local is_held = redis.call('GET', key('lease', gpu)) == token",
        "local is_held = redis.call('GET', key('lease', gpu)) ~= false",
        "ledger/test_release.py::test_under_a_strangers_lease_it_ends_and_the_key_is_left_alone",
        only="release",
    ),
    "start_does_not_compare_tokens": Mutation(
        "t[2] ~= token or redis.call('HGET', key('claim', gpu), 'token') ~= token",
        "not t[2]",
        "ledger/test_start.py::test_a_stale_message_does_not_start_the_next_claim_of_its_ticket",
        only="start",
    ),
    "start_lets_a_second_request_run": Mutation(
        "if t[1] ~= 'claimed' and t[3] ~= nonce then",
        "if false then",
        "ledger/test_start.py::test_another_request_is_refused",
    ),
    "start_overlooks_a_stranger": Mutation(
        "if t[1] ~= 'tail' and (not lease or lease == token) then",
        "if t[1] ~= 'tail' then",
        "ledger/test_start.py::test_under_a_strangers_lease_it_goes_back_uncounted",
    ),
    "requeue_forgets_to_uncount": Mutation(
        "if not delivered then",
        "if false then",
        "ledger/test_give_back.py::test_a_worker_that_stops_gives_it_back_uncounted",
    ),
    "reap_grants_no_grace": Mutation(
        "if grace_until > NOW then",
        "if false then",
        "ledger/test_reap.py::test_after_an_outage_runs_are_left_for_their_workers_to_regain",
    ),
    "a_grace_of_another_clock_spares_the_dead": Mutation(
        "return grace_until <= longest_until and grace_until or 0, false",
        "return grace_until, false",
        "ledger/test_reap.py::test_a_grace_of_a_clock_that_was_stepped_back_since_spares_nobody",
    ),
    "a_program_that_is_forgotten_is_overlooked": Mutation(
        "if tonumber(program_fence) <= (tonumber(redis.call('GET', key('fence', gpu))) or 0) then",
        "if true then",
        "ledger/test_run.py::test_a_program_that_redis_has_forgotten_keeps_its_gpu_from_who_waits_until_it_has_beaten",
    ),
    "who_was_cut_off_takes_what_may_run": Mutation(
        "(is_back == '0' or is_alive(gpu))",
        "true",
        "ledger/test_run.py::test_who_was_cut_off_takes_only_what_a_living_worker_offers",
    ),
    "bury_overlooks_who_came_since": Mutation(
        "if not presence or not string.find(presence, dead, 1, true) then",
        "if not presence then",
        "ledger/test_bury.py::test_it_is_buried_once_and_never_for_another",
        only="bury",
    ),
    "reap_does_not_wait_for_the_deadline": Mutation(
        "== token) or deadline > NOW then",
        "== token) then",
        "ledger/test_reap.py::test_a_lease_deleted_by_hand_is_held_until_its_deadline",
    ),
    "hold_does_not_know_what_has_ended": Mutation(
        "if redis.call('EXISTS', name) == 1 or redis.call('ZSCORE', ENDED, ticket) then",
        "if redis.call('EXISTS', name) == 1 then",
        "ledger/test_hold.py::test_holding_again_does_nothing_after_its_end_either",
    ),
    "taken_out_of_the_line_and_not_of_its_index": Mutation(
        "redis.call('ZREM', key('pinned_in', pool), ticket)",
        "",
        "ledger/test_bump.py::test_a_pinned_one_moves_in_its_gpus_line",
    ),
    "back_in_line_behind_everybody": Mutation(
        "put_in_line(ticket, tonumber(redis.call('HGET', name, 'score')))",
        "put_in_line(ticket)",
        "ledger/test_force.py::test_what_was_not_started_goes_back_to_its_place_uncounted",
    ),
    "a_retry_does_not_supersede": Mutation(
        "redis.call('HSET', key('ticket', run_ticket), 'superseded', 1)",
        "redis.call('PING')",
        "ledger/test_hold.py::test_a_retry_supersedes_the_run_that_sends_it",
    ),
    "a_run_regains_what_a_stranger_took": Mutation(
        "local is_open = (not lease and",
        "local is_open = (lease ~= token and",
        "ledger/test_renew.py::test_a_strangers_lease_robs_it",
    ),
    "a_run_comes_back_although_it_started_elsewhere": Mutation(
        "t[2] == token, t[2] ~= token and (t[5] == token or is_forgotten)",
        "t[2] == token, t[2] ~= token",
        "ledger/test_renew.py::test_a_run_is_never_regained_once_it_started_elsewhere",
    ),
    "two_claims_in_one_call_share_a_token": Mutation(
        "string.format('%s-%s-%.0f', seed, gpu, fence)",
        "string.format('%s-%.0f', seed, fence)",
        "ledger/test_quarantine.py::test_those_that_are_acquitted_take_work_at_once",
    ),
    "fences_stand_still": Mutation(
        "(tonumber(redis.call('GET', key('fence', gpu))) or 0) + 1, NOW)",
        "0, NOW - NOW % 3600000)",
        "ledger/test_claim.py::test_fences_grow_with_every_claim_also_when_the_clock_does_not",
    ),
    "a_gpu_given_back_keeps_its_lease": Mutation(
        "redis.call('DEL', key('lease', gpu))",
        "redis.call('PING')",
        "ledger/test_give_back.py::test_a_full_server_lets_it",
        only="give_back",
    ),
    "what_is_deferred_counts": Mutation(
        "redis.call('HINCRBY', name, 'deliveries', -1)",
        "redis.call('PING')",
        "ledger/test_defer.py::test_it_waits_uncounted_until_it_is_due_and_the_gpu_is_free",
        only="defer",
    ),
    "what_was_deferred_stands_behind_everybody": Mutation(
        "put_in_line(ticket, tonumber(redis.call('HGET', key('ticket', ticket), 'score') or nil))",
        "put_in_line(ticket)",
        "ledger/test_defer.py::test_promoted_it_stands_at_its_old_place",
        only="promote",
    ),
    "cancel_overlooks_a_claim": Mutation(
        "unclaim(one[2])",
        "redis.call('PING')",
        "ledger/test_cancel.py::test_a_claim_that_nobody_started_is_withdrawn_and_its_gpu_goes_to_the_next",
        only="cancel",
    ),
    "a_bump_gives_away_who_came_first": Mutation(
        "+ tonumber(t[4]) % PRIORITY_STEP",
        "+ next_arrival()",
        "ledger/test_bump.py::test_bumped_back_it_has_its_old_place",
        only="bump",
    ),
    "a_bump_moves_nobody": Mutation(
        "redis.call('ZADD', line_of(t[2], t[3]), redis.call('HGET', name, 'score'), ticket)",
        "redis.call('PING')",
        "ledger/test_bump.py::test_a_pinned_one_moves_in_its_gpus_line",
        only="bump",
    ),
    "force_leaves_the_lease": Mutation(
        "redis.call('DEL', key('lease', gpu))",
        "redis.call('PING')",
        "ledger/test_force.py::test_a_run_loses_its_lease_and_becomes_a_tail",
        only="force",
    ),
    "a_forced_run_comes_back": Mutation(
        "== 'forced' then",
        "== 'never' then",
        "ledger/test_release.py::test_a_forced_run_that_was_reaped_ends_nothing",
        only="reap",
    ),
    "a_beat_keeps_what_is_not_its_own": Mutation(
        "or redis.call('GET', key('lease', gpu)) ~= token",
        "",
        "ledger/test_beat.py::test_it_does_nothing_where_anything_is_unusual",
        only="beat",
    ),
    "a_beat_speaks_for_another_worker": Mutation(
        "redis.call('GET', key('worker', gpu)) ~= presence",
        "false",
        "ledger/test_beat.py::test_it_does_nothing_where_anything_is_unusual",
        only="beat",
    ),
    "a_beat_after_an_outage_grants_no_grace": Mutation(
        "> SHORTEST_OUTAGE_MS then",
        "> 86400000 then",
        "ledger/test_beat.py::test_after_a_silence_it_grants_a_grace_as_any_heartbeat_does",
        only="beat",
    ),
    "a_tail_does_not_live_by_its_heartbeat": Mutation(
        "prolong_tail(gpu)\n  return",
        "redis.call('ZREM', DEADLINES, gpu)\n  return",
        "ledger/test_force.py::test_a_lapsed_lease_of_a_run_is_taken_too",
        only="renew",
    ),
    "a_drained_gpu_keeps_what_it_did_not_start": Mutation(
        "if claim[2] == 'claimed' then",
        "if false then",
        "ledger/test_drain.py::test_what_was_routed_and_not_started_goes_back_uncounted_and_to_another_gpu",
        only="drain",
    ),
    "a_quarantine_closes_nothing": Mutation(
        " or ((closed[3] or closed[4]) and 'quarantine') or nil",
        " or nil",
        "ledger/test_quarantine.py::test_a_claim_that_was_not_started_closes_its_gpu_for_a_heartbeat",
    ),
    "a_lease_by_the_other_name_is_overlooked": Mutation(
        "other ~= '' and redis.call('EXISTS', key('lease', other), key('want', other), key('claim', other)) > 0",
        "false",
        "ledger/test_names.py::test_a_gpu_is_not_handed_over_against_one",
    ),
    "a_device_is_suspect_under_its_holder": Mutation(
        "if (lease and lease ~= claim[2]) or (claim[2] and not is_over) then",
        "if false then",
        "ledger/test_quarantine_device.py::test_a_strangers_lease_is_his_right_to_use_the_gpu_by_either_name",
    ),
    "a_device_with_a_new_name_is_open": Mutation(
        "if closed[at] ~= 'closing' and closed[at] ~= 'device' then",
        "if false then",
        "ledger/test_names.py::test_what_closed_it_closes_it_still",
    ),
    "a_stray_stays_where_it_is": Mutation(
        "redis.call('ZREM', prefix .. place, ticket)",
        "redis.call('PING')",
        "test_reconcile.py::test_a_waiting_ticket_is_in_its_line_and_nowhere_else",
    ),
    "a_gpu_is_forgotten_under_a_lapsed_run": Mutation(
        "if ticket then\n    local t",
        "if false then\n    local t",
        "ledger/test_forget.py::test_a_claim_keeps_it_also_when_its_lease_has_lapsed",
        only="forget",
    ),
    "its_fence_is_forgotten_with_it": Mutation(
        "unregister(gpu, names)\nreturn",
        "unregister(gpu, names)\nredis.call('DEL', key('fence', gpu))\nreturn",
        "ledger/test_forget.py::test_a_run_that_was_reaped_and_comes_back_late_does_not_believe_that_redis_has_lost_it",
        only="forget",
    ),
    "a_gpu_is_forgotten_under_its_worker": Mutation(
        "elseif presence then\n  return { 'served'",
        "elseif false then\n  return { 'served'",
        "ledger/test_forget.py::test_a_worker_that_is_present_keeps_it_also_where_nobody_hears_of_it",
        only="forget",
    ),
    "the_dead_are_alive": Mutation(
        "return count.err ~= nil or tonumber(count[2]) > 0",
        "return true",
        "ledger/test_hold.py::test_a_gpu_whose_worker_was_killed_gets_nothing",
    ),
}


def mutated(mutation):
    """The scripts that have the mistake; the text must be there, or the mutation proves nothing."""
    texts = {name: scripts.source(name).text for name in scripts.names() if mutation.only in ("", name)}
    found = {name: text.replace(mutation.old, mutation.new) for name, text in texts.items() if mutation.old in text}
    assert found, f"no script has {mutation.old!r}"
    return found


def pytest_configure():
    """Every ledger of this run of pytest makes the mistake."""
    texts, right = mutated(MUTATIONS[os.environ[MUTATION]]), scripts.source

    @cache
    def source(name):
        return replace(right(name), text=texts.get(name, right(name).text))

    scripts.source = source
