-- include: dispatch quarantine
-- What a dead holder left: its ticket goes back to its place, or to its end; its lease goes, a stranger's stays.
local function take_up(gpu, why, seed)
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state')
  local acquitted = {}
  if claim[3] == 'claimed' then
    withdraw_message(gpu)
    acquitted = return_unstarted(claim[1], gpu)
  else
    if claim[3] == 'tail' and redis.call('HGET', key('ticket', claim[1]), 'why') == 'forced' then
      redis.call('HDEL', key('ticket', claim[1]), 'last_run') -- it never takes the lease back
    end
    return_died(claim[1], gpu, why)
  end
  drop_claim(gpu, claim[2])
  if claim[3] ~= 'claimed' then -- else no run has lost anything
    redis.call('HINCRBY', COUNTERS, 'reaped', 1)
  end
  mark_free_if_claimable(gpu)
  dispatch_ticket(claim[1], seed)
  acquitted[#acquitted + 1] = gpu -- where its ticket has ended, nothing was dispatched
  for _, open in ipairs(acquitted) do
    claim_next(open, false, seed)
  end
end

-- The same for a worker that is known to be dead, whatever is left of any ttl; the ticket, or '' where it left none. A
-- run that another one has started waits for its deadline.
local function take_up_from(dead, gpu, why, seed)
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'state')
  if not claim[1] or (claim[2] ~= 'claimed' and redis.call('HGET', key('ticket', claim[1]), 'holder') ~= dead) then
    return ''
  end
  if claim[2] ~= 'claimed' then -- else a run elsewhere, which was given up for dead, may still come back
    redis.call('HDEL', key('ticket', claim[1]), 'last_run') -- it is over, and never takes the lease back
  end
  take_up(gpu, why, seed)
  return claim[1]
end
