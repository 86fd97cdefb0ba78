-- A run asks to keep its lease: the deadline becomes the server's now + ttl. The table is in design.md, section 5.
-- KEYS: prefix
-- ARGV: gpu ticket token fence route
-- Returns: {'renewed' | 'regained' | 'robbed' | 'lost' | 'ended' | 'unstarted' | 'flushed'} | {'tail', why}
-- include: dispatch
local gpu, ticket, token, fence, route = unpack(ARGV)
local name = key('ticket', ticket)
local t = redis.call('HMGET', name, 'state', 'token', 'gpu', 'why')
local state, is_current = t[1], t[2] == token
local lease = redis.call('GET', key('lease', gpu))
local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state')
-- a claim that nobody started yields to a run: rare, since a lapsed lease of a living run is not claimable
local is_yielding = claim[3] == 'claimed' and claim[2] ~= token and (not lease or lease == claim[2])
local is_open = (not lease and (not claim[1] or claim[2] == token)) or is_yielding

local function regain()
  if is_yielding then
    unclaim(gpu, route)
    if claim[1] ~= ticket then
      back_to_place(claim[1], gpu, 'regained by a run', true)
    end
  end
  hold_lease(gpu, token)
  redis.call('HSET', key('claim', gpu), 'ticket', ticket, 'token', token, 'fence', fence, 'state', 'started',
    'claimed_ms', NOW, 'started_ms', NOW)
  redis.call('HSET', name, 'state', 'started', 'gpu', gpu, 'token', token)
  mark_busy(gpu)
  note('regained', ticket, gpu, '')
  return { 'regained' }
end

if not state then
  if redis.call('ZSCORE', ENDED, ticket) then
    return { 'ended' }
  end
  return { redis.call('EXISTS', GPUS) == 1 and 'lost' or 'flushed' }
elseif is_current and state == 'tail' then
  return { 'tail', t[4] }
elseif is_current and state == 'claimed' then
  return { 'unstarted' }
elseif is_current and lease == token then
  hold_lease(gpu, token)
  return { 'renewed' }
elseif is_current and is_open then
  return regain()
elseif is_current then
  redis.call('HSET', name, 'state', 'tail', 'why', 'robbed')
  redis.call('HSET', key('claim', gpu), 'state', 'tail')
  redis.call('ZREM', DEADLINES, gpu)
  note('robbed', ticket, gpu, lease)
  return { 'robbed' }
elseif is_open and state == 'pending' then -- it was reaped, and nobody has started it since
  take_out(ticket)
  return regain()
elseif is_open and state == 'claimed' then
  if t[3] ~= gpu then
    unclaim(t[3], route)
  end
  return regain()
end
return { 'lost' }
