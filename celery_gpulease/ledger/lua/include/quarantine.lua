-- include: gpu ticket pulse
-- A GPU whose living worker did not start what it was given gets no work for a while; the while doubles each time.
local LONGEST_QUARANTINE_MS = 5 * 60 * 1000

local function quarantine(gpu, ticket)
  local t = redis.call('HMGET', key('ticket', ticket), 'task', 'task_id')
  local device = redis.call('HMGET', key('device', gpu), 'ttl_ms', 'heartbeat_ms')
  local closed = key('closed', gpu)
  local number = redis.call('HINCRBY', closed, 'quarantines', 1)
  local lasts_ms = math.min(tonumber(device[2] or 10000) * 2 ^ math.min(number - 1, 30), LONGEST_QUARANTINE_MS)
  local reason = string.format('%s[%s] was not started within %.0f s; closed for %.0f s or more (%d in a row)',
    t[1] or '', t[2] or '', (tonumber(device[1]) or 30000) / 1000, math.ceil(lasts_ms / 1000), number)
  redis.call('HSET', closed, 'quarantine', reason, 'until_ms', string.format('%.0f', NOW + lasts_ms),
    'quarantined_by', ticket)
  mark_busy(gpu)
  note('quarantined', ticket, gpu, reason)
end

-- A longer one than we ever set is of a clock that was stepped back since.
local function is_over(until_ms)
  return until_ms <= NOW or until_ms > NOW + LONGEST_QUARANTINE_MS
end

-- The GPU may be claimed again, unless something else closes it.
local function end_quarantine(gpu, why)
  local closed = key('closed', gpu)
  if redis.call('HDEL', closed, 'quarantine', 'until_ms') > 0 then
    note('quarantine_ended', redis.call('HGET', closed, 'quarantined_by') or '', gpu, why)
  end
  mark_free_if_claimable(gpu)
end

-- The message was to blame: the GPUs that did not start it are open again, as if nothing had been.
local function acquit(ticket)
  local acquitted = {}
  for _, gpu in ipairs(redis.call('SMEMBERS', key('returned', ticket))) do
    local closed = redis.call('HMGET', key('closed', gpu), 'quarantined_by', 'left')
    if closed[1] == ticket then
      if not closed[2] then -- what is left there closes it still
        end_quarantine(gpu, 'its task was to blame')
        acquitted[#acquitted + 1] = gpu
      end
      redis.call('HDEL', key('closed', gpu), 'quarantines', 'quarantined_by')
    end
  end
  return acquitted
end

-- A claim that nobody started in time: the GPU is suspect first, the message after `RETURNS_LIMIT` returns or three
-- GPUs. Answers the GPUs that are open again. After an outage, or where the message is gone, nobody is to blame.
local function return_unstarted(ticket, gpu)
  if has_vanished(ticket) then
    return {}
  elseif notice_outage() > NOW or redis.call('EXISTS', key('message', ticket)) == 0 then
    back_to_place(ticket, gpu, 'lost on its way', false)
    return {}
  end
  redis.call('SADD', key('returned', ticket), gpu)
  local returns = redis.call('HINCRBY', key('ticket', ticket), 'returns', 1)
  if returns >= RETURNS_LIMIT or redis.call('SCARD', key('returned', ticket)) >= GPUS_LIMIT then
    mark_ending(ticket, 'unstarted')
    return acquit(ticket)
  end
  back_to_place(ticket, gpu, 'unstarted', false)
  if is_alive(gpu) then
    quarantine(gpu, ticket)
  end
  return {}
end
