-- include: keys time
-- The lines: where a ticket waits for a GPU, in order of priority and arrival.
local PRIORITY_STEP = 2 ^ 45

-- A program waits for the GPUs of one host that serve a pool: its pin is `<host>/<pool>`, which no GPU is called.
local function pin_of_program(host, pool)
  return host .. '/' .. pool
end

local function is_program(pin)
  return pin and string.find(pin, '/', 1, true) ~= nil
end

local function line_of(pool, pin)
  if pin ~= '' then
    return key('pinned', pin)
  end
  return key('pending', pool)
end

-- A number that grows with every ticket that enters a line, near to now * 8.
local function next_arrival()
  local arrival = math.max((tonumber(redis.call('GET', ARRIVAL)) or 0) + 1, NOW * 8)
  redis.call('SET', ARRIVAL, string.format('%.0f', arrival))
  return arrival
end

-- A line is named in `lines`, so that views need not look for it among all keys. `t`: pool and pin.
local function add_to_line(ticket, score, t)
  redis.call('ZADD', line_of(t[1], t[2]), score, ticket)
  if t[2] == '' then
    redis.call('SADD', LINES, 'pending:' .. t[1])
  else
    redis.call('ZADD', key('pinned_in', t[1]), (score % PRIORITY_STEP) / 8, ticket)
    redis.call('SADD', LINES, 'pinned:' .. t[2], 'pinned_in:' .. t[1])
  end
end

-- Puts a ticket at its place; `score` is nil when it enters a line for the first time. `t`: where that is known, its
-- pool, pin, priority and expires_ms.
local function put_in_line(ticket, score, t)
  t = t or redis.call('HMGET', key('ticket', ticket), 'pool', 'pin', 'priority', 'expires_ms')
  score = score or tonumber(t[3]) * PRIORITY_STEP + next_arrival()
  add_to_line(ticket, score, t)
  if tonumber(t[4]) > 0 then
    redis.call('ZADD', EXPIRING, t[4], ticket)
  end
  redis.call('HSET', key('ticket', ticket), 'state', 'pending', 'score', string.format('%.0f', score))
end

-- One listener must wake earlier than it thinks; an ACL may refuse to tell it.
local function tell_of_next()
  redis.pcall('PUBLISH', key('here', redis.call('HGET', PULSE, 'gpu') or ''), 'due')
end

-- Is this ticket the next of all to be due, or to expire?
local function tell_if_next(ticket)
  if redis.call('ZRANGE', SCHEDULED, 0, 0)[1] == ticket or redis.call('ZRANGE', EXPIRING, 0, 0)[1] == ticket then
    tell_of_next()
  end
end

-- Puts a ticket among those that wait for their time; it keeps the place in its line that it may have.
local function put_in_schedule(ticket, due_ms)
  local t = redis.call('HMGET', key('ticket', ticket), 'pool', 'expires_ms')
  redis.call('ZADD', SCHEDULED, due_ms, ticket)
  redis.call('HINCRBY', SCHEDULED_COUNT, t[1], 1)
  if tonumber(t[2]) > 0 then
    redis.call('ZADD', EXPIRING, t[2], ticket)
  end
  redis.call('HSET', key('ticket', ticket), 'state', 'scheduled')
  tell_if_next(ticket)
end

-- Not in the schedule any more; once nobody is, the count is right again, whatever vanished by hand.
local function unschedule(ticket, pool)
  if redis.call('ZREM', SCHEDULED, ticket) == 1 and pool then
    redis.call('HINCRBY', SCHEDULED_COUNT, pool, -1)
  end
  if redis.call('EXISTS', SCHEDULED) == 0 then
    redis.call('DEL', SCHEDULED_COUNT)
  end
end

local function leave_line(ticket, pool, pin, expires_ms)
  redis.call('ZREM', line_of(pool, pin), ticket)
  if pin ~= '' then
    redis.call('ZREM', key('pinned_in', pool), ticket)
  end
  if expires_ms ~= '0' then
    redis.call('ZREM', EXPIRING, ticket)
  end
end

-- Takes a ticket out of the place where it waits: a line, or the schedule.
local function take_out(ticket)
  local t = redis.call('HMGET', key('ticket', ticket), 'pool', 'pin', 'state')
  if t[1] and t[3] ~= 'scheduled' then
    leave_line(ticket, t[1], t[2])
    return
  end
  redis.call('ZREM', EXPIRING, ticket)
  unschedule(ticket, t[1]) -- or the ticket itself is gone: evicted, or deleted by hand
end
