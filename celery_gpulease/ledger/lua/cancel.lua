-- Takes back every held ticket of a task, and hands its end to the caller; what runs already is left alone.
-- Safe to repeat: an end that was cancelled and is not written yet is handed out again.
-- KEYS: prefix
-- ARGV: task_id seed route
-- Returns: {'known' | 'unknown', {gpu that runs it, ...}, {end as END replies it, ...}}
-- include: dispatch ending
local task_id, seed, route = unpack(ARGV)
local word, running, ends = 'unknown', {}, {}

local function cancel(ticket, gpu)
  if gpu then
    unclaim(gpu, route)
  end
  take_out(ticket)
  mark_ending(ticket, 'cancelled')
  redis.call('HDEL', key('ticket', ticket), 'gpu', 'last_run') -- a run that was reaped is not its own any more
  if gpu then
    claim_next(gpu, false, seed, route)
  end
end

for _, ticket in ipairs(tickets_of(task_id)) do
  local t = redis.call('HMGET', key('ticket', ticket), 'state', 'gpu')
  word = 'known'
  if t[1] == 'started' or t[1] == 'tail' then
    running[#running + 1] = t[2]
  elseif t[1] ~= 'ending' then
    cancel(ticket, t[1] == 'claimed' and t[2])
  end
  if redis.call('HGET', key('ticket', ticket), 'why') == 'cancelled' then -- now, or before
    local answer = hand_out(ticket)
    if answer[1] == 'end' then
      ends[#ends + 1] = answer
    end
  end
end
return { word, running, ends }
