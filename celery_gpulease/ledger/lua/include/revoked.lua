-- include: keys time
-- What was revoked, by task id or by stamp: as in Celery's workers (celery/worker/state.py), for three hours whatever
-- comes of it ends too, and the oldest of too many are forgotten.
local REVOKED_MS, REVOKED_LIMIT = 3 * 60 * 60 * 1000, 50000

local function remember_revoked(set, name)
  redis.call('ZADD', set, NOW, name)
  redis.call('ZREMRANGEBYRANK', set, 0, -REVOKED_LIMIT - 1)
  local old = redis.call('ZRANGEBYSCORE', set, '-inf', NOW - REVOKED_MS, 'LIMIT', 0, 4)
  if #old > 0 then
    redis.call('ZREM', set, unpack(old))
  end
end

local function is_remembered(set, name)
  local at = tonumber(redis.call('ZSCORE', set, name) or nil)
  return at and at > NOW - REVOKED_MS
end

-- `stamps` as HOLD got them: a JSON list of names, or nothing.
local function is_revoked(task_id, stamps)
  if is_remembered(REVOKED, task_id or '') then
    return true
  end
  for _, stamp in ipairs(stamps and stamps ~= '' and cjson.decode(stamps) or {}) do
    if is_remembered(REVOKED_STAMPS, stamp) then
      return true
    end
  end
  return false
end
