-- include: line journal revoked
-- The ends of a ticket, and its way back to the line.
local REMEMBERED_MS = 15 * 60 * 1000
local LONGEST_AFTER_RUN_MS = 60000
local LONGEST_DELAY_MS = 5 * 60 * 1000
local RETURNS_LIMIT, GPUS_LIMIT = 10, 3 -- claims that nobody started in time

-- A task that its own run sends again (a retry) waits until that run is over, which is about to store RETRY: else a
-- quick successor's end would be overwritten. Should the end of that run never be told, it is looked for after a while.
local function is_after_a_run(ticket)
  local run = redis.call('HGET', key('ticket', ticket), 'after')
  local state = run and redis.call('HGET', key('ticket', run), 'state')
  return state == 'started' or state == 'tail'
end

-- What waited for a run of its task, an end or a retry, is due once none of its tickets runs.
local function end_what_waited(task_id)
  local waiting = {}
  for _, ticket in ipairs(redis.call('HKEYS', key('task', task_id))) do
    local t = redis.call('HMGET', key('ticket', ticket), 'state', 'attempts', 'after', 'eta_ms')
    if t[1] == 'started' or t[1] == 'tail' then
      return
    elseif t[1] == 'ending' and t[2] == '0' then
      waiting[#waiting + 1] = { ENDING, ticket, NOW }
    elseif t[1] == 'scheduled' and t[3] then
      waiting[#waiting + 1] = { SCHEDULED, ticket, math.max(tonumber(t[4]), NOW) }
    end
  end
  for _, one in ipairs(waiting) do
    redis.call('ZADD', one[1], one[3], one[2])
    tell_of_next()
  end
end

-- The ticket has ended: it is forgotten but for its id, so that a repeated HOLD does nothing.
local function end_ticket(ticket)
  local task_id = task_of(ticket)
  redis.call('ZADD', ENDED, NOW, ticket)
  if task_id ~= '' then
    redis.call('HDEL', key('task', task_id), ticket)
    end_what_waited(task_id)
  end
  redis.call('DEL', key('ticket', ticket), key('message', ticket), key('returned', ticket))
  local old = redis.call('ZRANGEBYSCORE', ENDED, '-inf', NOW - REMEMBERED_MS, 'LIMIT', 0, 4)
  if #old > 0 then
    redis.call('ZREM', ENDED, unpack(old))
  end
end

-- Is the ticket itself gone, evicted or deleted by hand? Then the rest of it goes too, and the journal says so once.
local function has_vanished(ticket)
  if redis.call('EXISTS', key('ticket', ticket)) == 1 then
    return false
  end
  if not redis.call('ZSCORE', ENDED, ticket) then
    note('vanished', ticket, '', 'the ticket is gone')
    end_ticket(ticket)
  end
  return true
end

-- The tickets of a task id: it comes back on a retry, and may be sent twice.
local function tickets_of(task_id)
  local found = {}
  for _, ticket in ipairs(redis.call('HKEYS', key('task', task_id))) do
    if has_vanished(ticket) then
      redis.call('HDEL', key('task', task_id), ticket)
    else
      found[#found + 1] = ticket
    end
  end
  return found
end

-- A program's end is written nowhere: whoever waits for its turn, or runs it, is told.
local function end_program(ticket, why, gpu)
  note('ended', ticket, gpu, why)
  end_ticket(ticket)
  redis.pcall('PUBLISH', key('here', ticket), 'ended')
end

-- The end must still be written outside Redis (result backend, callbacks): a worker does that, then FINISH.
-- `beside_a_run`: of the same task, which may be about to store that it asked for a retry. It is due when that run's
-- ticket has ended, or after a while, should that one have vanished. `gpu` and `how`: where its last run died, and of what.
local function mark_ending(ticket, why, beside_a_run, gpu, how)
  local detail = how and why .. ': ' .. how or why
  if is_program(redis.call('HGET', key('ticket', ticket), 'pin')) then
    end_program(ticket, detail, gpu)
    return
  end
  redis.call('ZADD', ENDING, beside_a_run and NOW + LONGEST_AFTER_RUN_MS or NOW, ticket)
  redis.call('HSET', key('ticket', ticket), 'state', 'ending', 'why', why, 'how', how or '', 'attempts', 0)
  redis.call('HDEL', key('ticket', ticket), 'token', 'nonce')
  note('ending', ticket, gpu, detail)
end

-- Back to the old place in the line, where `delay_ms` says so after a while. `delivered`: does this delivery count?
local function back_to_place(ticket, gpu, why, delivered, delay_ms)
  if has_vanished(ticket) then
    return
  end
  local name = key('ticket', ticket)
  if not delivered then
    redis.call('HINCRBY', name, 'deliveries', -1)
  end
  redis.call('HDEL', name, 'gpu', 'token', 'nonce')
  if is_revoked(unpack(redis.call('HMGET', name, 'task_id', 'stamps'))) then -- while it ran, or was on its way
    redis.call('HDEL', name, 'last_run') -- a run that was reaped is not its own any more
    mark_ending(ticket, 'cancelled')
    tell_of_next()
    return
  end
  if delay_ms then
    put_in_schedule(ticket, NOW + delay_ms)
  else
    put_in_line(ticket, tonumber(redis.call('HGET', name, 'score')))
  end
  note('requeued', ticket, gpu, why)
end

-- A task whose runs die shall not keep a GPU from others: nil after its first death (hosts are taken away), then a
-- heartbeat, doubled with each death.
local function delay_after(deaths, gpu)
  if deaths < 2 then
    return nil
  end
  local heartbeat_ms = tonumber(redis.call('HGET', key('device', gpu or ''), 'heartbeat_ms')) or 10000
  return math.min(heartbeat_ms * 2 ^ math.min(deaths - 2, 30), LONGEST_DELAY_MS)
end

-- The run is over without an end of its own. A run that was superseded by its retry, or may run only once, ends here.
local function return_died(ticket, gpu, why)
  local t = redis.call('HMGET', key('ticket', ticket), 'superseded', 'acks_late', 'deliveries', 'limit')
  local deliveries = tonumber(t[3]) or 0
  if has_vanished(ticket) then
    return
  elseif t[1] then
    note('superseded', ticket, gpu, why)
    end_ticket(ticket)
  elseif t[2] == '0' or deliveries >= tonumber(t[4] or 3) then
    mark_ending(ticket, 'lease_lost', false, gpu, why)
  else
    back_to_place(ticket, gpu, why, true, delay_after(deliveries, gpu))
  end
end
