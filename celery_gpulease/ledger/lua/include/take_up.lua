-- include: dispatch
-- What a dead holder left: its ticket goes back to its place, or to its end; its lease goes, a stranger's stays.
local function take_up(gpu, why, seed, route)
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state')
  if claim[3] == 'claimed' then
    withdraw_message(gpu, route)
    return_unstarted(claim[1], gpu)
  else
    if claim[3] == 'tail' and redis.call('HGET', key('ticket', claim[1]), 'why') == 'forced' then
      redis.call('HDEL', key('ticket', claim[1]), 'last_run') -- it never takes the lease back
    end
    return_died(claim[1], gpu, why)
  end
  drop_claim(gpu, claim[2])
  redis.call('HINCRBY', COUNTERS, 'reaped', 1)
  mark_free_if_claimable(gpu)
  dispatch_ticket(claim[1], seed, route)
  claim_next(gpu, false, seed, route) -- where its ticket has ended, nothing was dispatched
end
