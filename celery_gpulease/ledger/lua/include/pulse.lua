-- include: keys time
-- After an outage every deadline is past although every worker lives: for a while nothing started is reaped.
local SHORTEST_OUTAGE_MS = 50 -- half of the shortest ttl that settings.py takes

-- Until when that is; and is it a grace that nobody has granted yet?
local function grace()
  local pulse = redis.call('HMGET', PULSE, 'at', 'grace_until', 'granted_at')
  local shortest = redis.call('ZRANGE', GPUS, 0, 0, 'WITHSCORES')[2]
  local at, grace_until, granted_at = tonumber(pulse[1]), tonumber(pulse[2]) or 0, tonumber(pulse[3]) or 0
  local longest_until = NOW + tonumber(redis.call('ZREVRANGE', HEARTBEATS, 0, 0, 'WITHSCORES')[2] or 0) + 2000
  -- one grace for one silence: a reaper that no heartbeat follows must not grant it for ever
  if at and shortest and NOW - at > tonumber(shortest) / 2 and (granted_at <= at or granted_at > NOW) then
    return longest_until, true
  end
  -- a longer one than we ever grant is of a clock that was stepped back since
  return grace_until <= longest_until and grace_until or 0, false
end

local function notice_outage()
  local grace_until, is_new = grace()
  if is_new then
    redis.call('HSET', PULSE, 'grace_until', grace_until, 'granted_at', NOW)
  end
  return grace_until
end

-- Somebody's heartbeat reached the server. Where it is soon after another's, who is registered need not be asked.
local function beat_pulse(gpu)
  if NOW - (tonumber(redis.call('HGET', PULSE, 'at')) or 0) > SHORTEST_OUTAGE_MS then
    notice_outage()
  end
  redis.call('HSET', PULSE, 'at', NOW, 'gpu', gpu)
end
