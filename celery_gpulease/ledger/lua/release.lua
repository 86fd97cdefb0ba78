-- The holder gives the lease back and its ticket ends: what is done is done, wherever the ticket is by now.
-- KEYS: prefix
-- ARGV: gpu ticket token route
-- Returns: {'released' | 'ended' | 'lost' | 'unknown'}
-- include: forgotten
local gpu, ticket, token, route = unpack(ARGV)
local t = redis.call('HMGET', key('ticket', ticket), 'state', 'token', 'gpu', 'last_run')
local state, is_current = t[1], t[2] == token
local answer = 'released'
-- it was reaped and has started nowhere since; or Redis has forgotten that it started, and knows of no other run
local is_waiting = not is_current
  and (t[4] == token or (has_forgotten(gpu, token) and state ~= 'started' and state ~= 'tail'))

if not state then
  answer = redis.call('ZSCORE', ENDED, ticket) and 'ended' or 'unknown'
elseif not is_current and not is_waiting then -- it started elsewhere, was given back, or was told that it is lost
  answer = 'lost'
elseif is_waiting and state == 'claimed' then
  unclaim(t[3], route)
elseif state == 'ending' then
  redis.call('ZREM', ENDING, ticket)
elseif is_waiting then
  take_out(ticket)
end
drop_claim(gpu, token)
if answer == 'released' then
  note('released', ticket, gpu, '')
  end_ticket(ticket)
end
mark_free_if_claimable(gpu)
return { answer }
