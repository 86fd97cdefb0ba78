-- Somebody still waits to run a program, in its pool's line, on a GPU of this host: one that is free is claimed.
-- Safe to repeat: what was forgotten meanwhile comes back to its old place.
-- KEYS: prefix
-- ARGV: ticket task host pool priority score ttl_ms is_back seed
-- Returns: {'waiting', score} | {'claimed', gpu, index, token, fence, delivery, its lease's ttl_ms} | {'ended'}
--   | {'unserved', gpu, its pools, ...}: no GPU of this host serves this pool
-- include: dispatch host
local ticket, task, host, pool, priority, score, ttl_ms, is_back, seed = unpack(ARGV)
local name, pin = key('ticket', ticket), pin_of_program(host, pool)
local serving, others = {}, {}

for _, gpu in ipairs(gpus_of(host)) do
  for served in pools_of(gpu) do
    serving[#serving + 1] = served == pool and gpu or nil
  end
  others[#others + 1] = gpu
  others[#others + 1] = device_of(gpu)[1] or ''
end

if redis.call('ZSCORE', ENDED, ticket) then
  return { 'ended' }
elseif redis.call('EXISTS', name) == 0 then
  if score == '' and #serving == 0 then -- later it may be that Redis has forgotten them, for a heartbeat
    return { 'unserved', unpack(others) }
  end
  redis.call('HSET', name, 'task_id', ticket, 'task', task, 'pool', pool, 'pin', pin, 'priority', priority,
    'eta_ms', 0, 'expires_ms', 0, 'held_ms', NOW)
  redis.call('HSET', key('task', ticket), ticket, '')
  local place = tonumber(priority) * PRIORITY_STEP + next_arrival() -- none comes after the last arrival
  put_in_line(ticket, tonumber(score) or place, { pool, pin, priority, '0' })
  note('held', ticket, '', pool)
end
redis.call('HSET', name, 'waits_until', NOW + ttl_ms)

for _, gpu in ipairs(serving) do
  -- who was cut off takes no GPU without a living worker yet: Redis may have forgotten what runs there
  if redis.call('HGET', name, 'state') == 'pending' and (is_back == '0' or is_alive(gpu)) then
    claim_next(gpu, false, seed)
  end
end

local t = redis.call('HMGET', name, 'state', 'gpu', 'token', 'score')
if t[1] == 'claimed' or t[1] == 'started' then
  local claim = redis.call('HMGET', key('claim', t[2]), 'fence', 'delivery')
  return { 'claimed', t[2], redis.call('HGET', key('device', t[2]), 'index'), t[3], claim[1], claim[2],
    ttl_ms_of(t[2]) }
end
if expired_left == 0 or vanished_left == 0 then -- where no worker lives, nobody else would go on
  redis.pcall('PUBLISH', key('here', ticket), 'turn')
end
return { 'waiting', t[4] or score }
