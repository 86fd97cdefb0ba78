-- Holds a finished message: in its pool's line, or until it is due; then gives it to a free GPU, if there is one.
-- KEYS: prefix
-- ARGV: ticket task_id task pool pin priority eta_ms expires_ms message stamps run_ticket run_token seed
-- Returns: {'held' | 'scheduled' | 'claimed' | 'revoked' | 'known' | 'lost'}
-- include: ticket fence
local ticket, task_id, task, pool, pin, priority, eta_ms, expires_ms, message, stamps = unpack(ARGV)
local run_ticket, run_token, seed = unpack(ARGV, 11)
local name, due_ms, is_after_run = key('ticket', ticket), tonumber(eta_ms), false

if redis.call('EXISTS', name) == 1 or redis.call('ZSCORE', ENDED, ticket) then
  return { 'known' }
end
if run_ticket ~= '' then -- sent from inside a run, in its own place: a retry, or a replacement
  local run = redis.call('HMGET', key('ticket', run_ticket), 'state', 'token', 'last_run', 'task_id')
  local is_running, run_gpu = run[1] == 'started' or run[1] == 'tail', string.match(run_token, '^%x+%-(.+)%-%d+$')
  local is_forgotten = not is_running and run_gpu and has_forgotten(run_gpu, run_token)
    and not redis.call('ZSCORE', ENDED, run_ticket)
  if not is_forgotten and not (is_running and run[2] == run_token) then
    if run[3] == run_token then
      redis.call('HDEL', key('ticket', run_ticket), 'last_run')
    end
    return { 'lost' }
  end
  is_after_run = is_running and run[4] == task_id
end

-- Once this message has its place: else a script that stops half-way would leave the task without any.
local function supersede_run()
  if run_ticket ~= '' and redis.call('EXISTS', key('ticket', run_ticket)) == 1 then
    redis.call('HSET', key('ticket', run_ticket), 'superseded', 1)
  end
end

tasks[ticket] = { task_id, task }
redis.call('SET', key('message', ticket), message)
redis.call('HSET', name, 'task_id', task_id, 'task', task, 'pool', pool, 'pin', pin, 'priority', priority,
  'eta_ms', eta_ms, 'expires_ms', expires_ms, 'held_ms', NOW)
redis.call('HSET', key('task', task_id), ticket, '')

if is_after_run then
  redis.call('HSET', name, 'after', run_ticket)
  due_ms = due_ms > NOW and due_ms or NOW + LONGEST_AFTER_RUN_MS
end
if stamps ~= '' then
  redis.call('HSET', name, 'stamps', stamps)
end
if is_revoked(task_id, stamps) then
  mark_ending(ticket, 'cancelled', run_ticket ~= '')
  supersede_run()
  return { 'revoked' }
end
if due_ms > NOW then
  put_in_schedule(ticket, due_ms)
  supersede_run()
  note('scheduled', ticket, '', pool)
  return { 'scheduled' }
end

local t = { pool, pin, priority, expires_ms }
put_in_line(ticket, nil, t)
supersede_run()
note('held', ticket, '', pool)
if pin == '' and expires_ms == '0' and redis.call('EXISTS', key('free', pool)) == 0 then
  return { 'held' }
end
-- include: dispatch
return { dispatch_ticket(ticket, seed, t) and 'claimed' or 'held' }
