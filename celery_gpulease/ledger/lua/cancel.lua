-- Takes back every held ticket of a task, so that its end is due for whoever writes it; what runs is left alone.
-- Safe to repeat: a ticket that was cancelled and has not ended is named again.
-- KEYS: prefix
-- ARGV: task_id revoked seed
-- Returns: {'known' | 'unknown', {gpu that runs it, ...}, {{ticket, task, it has run, or is a program (1 or 0)}, ...}}
-- include: dispatch
local task_id, revoked, seed = unpack(ARGV)
local running, claimed, waiting, cancelled = {}, {}, {}, {}

if revoked == '1' then -- what comes of it later, a retry say, ends too
  remember_revoked(REVOKED, task_id)
end

local function cancel(ticket)
  local t = redis.call('HMGET', key('ticket', ticket), 'pin', 'task')
  take_out(ticket)
  mark_ending(ticket, 'cancelled', #running > 0)
  redis.call('HDEL', key('ticket', ticket), 'gpu', 'last_run') -- a run that was reaped is not its own any more
  if is_program(t[1]) then -- it has ended with that
    cancelled[#cancelled + 1] = { ticket, t[2], 1 }
  end
end

local tickets = tickets_of(task_id)
for _, ticket in ipairs(tickets) do
  local t = redis.call('HMGET', key('ticket', ticket), 'state', 'gpu')
  if t[1] == 'started' or t[1] == 'tail' then
    running[#running + 1] = t[2]
  elseif t[1] == 'claimed' then
    claimed[#claimed + 1] = { ticket, t[2] }
  elseif t[1] ~= 'ending' then
    waiting[#waiting + 1] = ticket
  end
end
for _, ticket in ipairs(waiting) do -- first: else a GPU that becomes free could be given one of them
  cancel(ticket)
end
for _, one in ipairs(claimed) do
  unclaim(one[2])
  cancel(one[1])
  claim_next(one[2], false, seed)
end
for _, ticket in ipairs(tickets) do
  local t = redis.call('HMGET', key('ticket', ticket), 'why', 'task', 'first_run_ms')
  if t[1] == 'cancelled' then -- now, or before
    cancelled[#cancelled + 1] = { ticket, t[2], t[3] and 1 or 0 }
  end
end
return { #tickets > 0 and 'known' or 'unknown', running, cancelled }
