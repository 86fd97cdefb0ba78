-- A run asks to keep its lease: the deadline becomes the server's now + ttl. Row by row: test_renew.py.
-- KEYS: prefix
-- ARGV: gpu ticket token fence ttl_ms is_lost
-- Returns: {'renewed' | 'regained' | 'robbed' | 'lost' | 'ended' | 'unstarted' | 'flushed'} | {'tail' | 'lost', why}
-- include: gpu
local gpu, ticket, token, fence, ttl_ms, is_lost = unpack(ARGV)
local name = key('ticket', ticket)
local run = redis.call('HMGET', name, 'state', 'token')

if run[1] == 'started' and run[2] == token and redis.call('GET', key('lease', gpu)) == token then
  prolong_lease(gpu)
  return { 'renewed' }
end
-- include: forgotten
local is_forgotten = is_lost == '0' and run[2] ~= token and has_forgotten(gpu, token)
if is_forgotten then
  drop_older_claim(gpu, token)
end
local t = redis.call('HMGET', name, 'state', 'token', 'gpu', 'why', 'last_run')
local state, is_current, was_reaped = t[1], t[2] == token, t[2] ~= token and (t[5] == token or is_forgotten)
local lease = redis.call('GET', key('lease', gpu))
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state')
-- a claim that nobody started yields to a run: rare, since a lapsed lease of a living run is not claimable
local is_yielding = claim[3] == 'claimed' and claim[2] ~= token and (not lease or lease == claim[2])
local is_open = (not lease and (not claim[1] or claim[2] == token)) or is_yielding

local function regain()
  if is_yielding then
    unclaim(gpu)
    if claim[1] ~= ticket then
      back_to_place(claim[1], gpu, 'regained by a run', true)
    end
  end
  mark_busy(gpu) -- a full server allows this write, and with it all that follow
  hold_lease(gpu, token)
  redis.call('HSET', key('claim', gpu), 'ticket', ticket, 'token', token, 'fence', fence, 'state', 'started',
    'claimed_ms', NOW, 'started_ms', NOW)
  redis.call('HSET', name, 'state', 'started', 'gpu', gpu, 'token', token)
  if is_forgotten then
    remember_run(gpu, ticket, token, fence)
  end
  note('regained', ticket, gpu, '')
  return { 'regained' }
end

if not state then
  -- deleted under the run, or forgotten: only the lease is left, and kept; not by what was told that it is lost
  local is_ended = redis.call('ZSCORE', ENDED, ticket)
  if is_lost == '0' and (lease == token or (is_forgotten and not lease and not is_ended)) then
    redis.call('SET', key('lease', gpu), token, 'PX', ttl_ms)
    return { 'flushed' }
  elseif is_ended then
    return { 'ended' }
  end
  return { 'lost' }
elseif is_current and state == 'tail' then
  prolong_tail(gpu)
  return { t[4] == 'forced' and 'lost' or 'tail', t[4] }
elseif is_current and state == 'claimed' then
  return { 'unstarted' }
elseif is_current and is_open then
  return regain()
elseif is_current then
  run_on_without_lease(gpu, ticket, token, 'robbed')
  note('robbed', ticket, gpu, lease)
  return { 'robbed' }
elseif was_reaped and is_open and (state == 'pending' or state == 'scheduled') then -- scheduled: it waits again
  take_out(ticket)
  return regain()
elseif was_reaped and is_open and state == 'claimed' then
  if t[3] ~= gpu then
    unclaim(t[3])
  end
  return regain()
end
-- what was once told that it is lost never comes back, and its RELEASE ends nothing
if is_forgotten then
  redis.call('SET', key('fence', gpu), fence)
elseif was_reaped then
  redis.call('HDEL', name, 'last_run')
end
return { 'lost' }
