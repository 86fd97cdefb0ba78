-- Who waits in some pools, in one moment.
-- KEYS: prefix
-- ARGV: pool ...
-- Returns: for each pool {pool, how many are pending, ms since the first of them came or -1, how many are scheduled}
-- include: line
local MOST_PRIORITIES = 256

-- The first to come stands first within its priority, whichever that is.
local function first_arrival(pool)
  local arrivals = { tonumber(redis.call('ZRANGE', key('pinned_in', pool), 0, 0, 'WITHSCORES')[2] or nil) }
  local from = '-inf'
  for _ = 1, MOST_PRIORITIES do
    local score = redis.call('ZRANGEBYSCORE', key('pending', pool), from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if not score then
      break
    end
    local priority = math.floor(tonumber(score) / PRIORITY_STEP)
    arrivals[#arrivals + 1] = (tonumber(score) % PRIORITY_STEP) / 8
    from = string.format('%.0f', (priority + 1) * PRIORITY_STEP)
  end
  return #arrivals > 0 and math.min(unpack(arrivals))
end

local found = {}
for _, pool in ipairs(ARGV) do
  local pending = redis.call('ZCARD', key('pending', pool)) + redis.call('ZCARD', key('pinned_in', pool))
  local first_ms = first_arrival(pool)
  found[#found + 1] = { pool, pending, first_ms and math.max(0, math.floor(NOW - first_ms)) or -1,
    tonumber(redis.call('HGET', SCHEDULED_COUNT, pool) or 0) }
end
return found
