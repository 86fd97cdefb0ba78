-- What is due: leases whose deadline has passed, and when to look again.
-- KEYS: prefix
-- ARGV:
-- Returns: {now, ms until a lease's deadline or -1, ms until a ticket is due or expires or -1, ms until an end is to be
--   written or -1, lapsed gpus}
-- include: keys time
local GPUS_PER_CALL = 10

local function until_first(name)
  local first = redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, first - NOW)
end

local function sooner(one, other)
  if one and other then
    return math.min(one, other)
  end
  return one or other or -1
end

local lapsed = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', '(' .. NOW, 'LIMIT', 0, GPUS_PER_CALL)
return { NOW, until_first(DEADLINES) or -1, sooner(until_first(SCHEDULED), until_first(EXPIRING)),
  until_first(ENDING) or -1, lapsed }
