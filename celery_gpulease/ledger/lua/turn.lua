-- One reconciler at a time, and not sooner than wanted after the last: takes the turn, or ends one's own.
-- KEYS: prefix
-- ARGV: who age_ms ttl_ms
-- Returns: {'yours' | 'taken' | 'recent' | 'over'}
-- include: time
local who, age_ms, ttl_ms = unpack(ARGV)
local turn = prefix .. 'turn:reconcile'

if age_ms == '' then
  if redis.call('GET', turn) == who then
    redis.call('DEL', turn)
  end
  return { 'over' }
end
if redis.call('GET', turn) == who then
  return { 'yours' }
end
local reconciled_at = tonumber(redis.call('HGET', PULSE, 'reconciled_at')) or 0
if reconciled_at <= NOW and NOW - reconciled_at < tonumber(age_ms) then -- a later one is of a clock stepped back since
  return { 'recent' }
end
if redis.call('PTTL', turn) > tonumber(ttl_ms) then -- so is this
  redis.call('PEXPIRE', turn, ttl_ms)
end
if not redis.call('SET', turn, who, 'NX', 'PX', ttl_ms) then
  return { 'taken' }
end
redis.call('HSET', PULSE, 'reconciled_at', NOW)
return { 'yours' }
