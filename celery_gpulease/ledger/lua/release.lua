-- The holder gives the lease back and its ticket ends: what is done is done, wherever the ticket is by now.
-- Where somebody waits, the GPU is handed over: its key never vanishes, and nobody has to be woken to claim it.
-- KEYS: prefix
-- ARGV: gpu ticket token detail seed
-- Returns: {'released' | 'ended' | 'lost' | 'unknown'}
-- include: forgotten
local gpu, ticket, token, detail, seed = unpack(ARGV)
local t = redis.call('HMGET', key('ticket', ticket), 'state', 'token', 'gpu', 'last_run', 'task_id', 'task')
local state, is_current = t[1], t[2] == token
local answer = 'released'
tasks[ticket] = { t[5], t[6] }
-- it was reaped and has started nowhere since; or Redis has forgotten that it started, and knows of no other run
local is_waiting = not is_current
  and (t[4] == token or (has_forgotten(gpu, token) and state ~= 'started' and state ~= 'tail'))

if not state then
  answer = redis.call('ZSCORE', ENDED, ticket) and 'ended' or 'unknown'
elseif not is_current and not is_waiting then -- it started elsewhere, was given back, or was told that it is lost
  answer = 'lost'
elseif is_waiting and state == 'claimed' then
  unclaim(t[3])
elseif state == 'ending' then
  redis.call('ZREM', ENDING, ticket)
elseif is_waiting then
  take_out(ticket)
end
local has_lease = redis.call('GET', key('lease', gpu)) == token
  and redis.call('HGET', key('claim', gpu), 'token') == token
if has_lease then
  redis.call('DEL', key('claim', gpu)) -- a full server allows this write
else
  drop_claim(gpu, token)
end
if answer == 'released' then
  note('released', ticket, gpu, detail)
  end_ticket(ticket)
end
if not has_lease then
  mark_free_if_claimable(gpu)
  return { answer }
end
local takes = takes_work(gpu)
if not (takes and claim_first(gpu, seed)) then
  redis.call('DEL', key('lease', gpu))
  redis.call('ZREM', DEADLINES, gpu)
  if takes then
    mark_free(gpu)
  else
    claim_next(gpu, false, seed) -- a program of its host may have it, where no worker serves it
  end
end
return { answer }
