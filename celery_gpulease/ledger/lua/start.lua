-- The worker takes a routed ticket over, just before it runs. Safe to repeat with the same nonce.
-- KEYS: prefix
-- ARGV: gpu ticket token nonce holder acks_late limit stores_result
-- Returns: {'run' | 'rerun' | 'again' | 'twice' | 'stale' | 'foreign' | 'unknown'}
-- include: gpu
local gpu, ticket, token, nonce, holder, acks_late, limit, stores_result = unpack(ARGV)
local name = key('ticket', ticket)
local t = redis.call('HMGET', name, 'state', 'token', 'nonce', 'runs', 'disowned', 'first_run_ms', 'task_id',
  'task')

local why
if not t[1] then
  why = redis.call('ZSCORE', ENDED, ticket) and 'stale' or 'unknown'
elseif t[2] ~= token or redis.call('HGET', key('claim', gpu), 'token') ~= token then
  why = 'stale'
elseif t[1] ~= 'claimed' and t[3] ~= nonce then
  why = 'twice'
end
if why then
  note('dropped', ticket, gpu, why)
  return { why }
end
local lease = redis.call('GET', key('lease', gpu))
if t[1] ~= 'tail' and (not lease or lease == token) then
  pass_lease(gpu, token)
  local runs = (tonumber(t[4]) or 0) + (t[1] == 'claimed' and 1 or 0)
  redis.call('HSET', name, 'state', 'started', 'nonce', nonce, 'holder', holder, 'acks_late', acks_late,
    'limit', limit, 'stores_result', stores_result, 'last_run', token, 'runs', runs, 'first_run_ms', t[6] or NOW)
  redis.call('HSET', key('claim', gpu), 'state', 'started', 'started_ms', NOW)
  if t[1] == 'claimed' then
    tasks[ticket] = { t[7], t[8] }
    note('started', ticket, gpu, '')
    if holder == ticket then -- a program: the GPU's worker remembers it, should Redis forget it (include/recall.lua)
      redis.pcall('PUBLISH', key('here', gpu), 'program ' .. string.match(token, '%d+$'))
    else
      redis.call('HDEL', key('closed', gpu), 'quarantines', 'quarantined_by') -- its worker is well
    end
  end
  local earlier = runs - 1
  if stores_result == '1' and earlier > tonumber(t[5] or 0) then
    return { 'again' }
  end
  return { earlier > 0 and 'rerun' or 'run' }
end
-- taken by force, or it lapsed and a stranger took the GPU
-- include: ticket
if t[1] ~= 'claimed' then -- asked again by a run that has not begun
  redis.call('HDEL', name, 'last_run')
end
back_to_place(ticket, gpu, 'foreign lease', false)
drop_claim(gpu, token)
return { 'foreign' }
