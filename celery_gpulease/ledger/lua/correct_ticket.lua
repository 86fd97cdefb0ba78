-- Puts one ticket right: one state, and the one place that belongs to it. Answers what was wrong, in words.
-- KEYS: prefix
-- ARGV: ticket found_in change seed
-- Returns: {task id or '', gpu or '', what was wrong, ...}
-- include: places
local ticket, found_in, change, seed = unpack(ARGV)
local t = fields_of(key('ticket', ticket), 'state', 'task_id', 'task', 'pool', 'pin', 'priority', 'expires_ms', 'gpu',
  'token', 'eta_ms', 'score', 'deliveries', 'returns', 'why')
local is_there = next(t) ~= nil
local is_left = redis.call('EXISTS', key('message', ticket), key('returned', ticket)) > 0
local is_whole = t.task_id and t.task and t.pool and t.pin and tonumber(t.priority) and tonumber(t.expires_ms)
  and (is_program(t.pin) or redis.call('EXISTS', key('message', ticket)) == 1)

if not is_there and (stands_in(ticket, found_in) or is_left) then
  found('there is no such ticket, and it is named in ' .. (found_in == '' and 'a message' or found_in), forget)
elseif GIVEN[t.state] and is_claim_of(ticket, t) and redis.call('ZSCORE', ENDED, ticket) then
  found('it is known as ended, and runs', function()
    redis.call('ZREM', ENDED, ticket)
  end)
elseif is_there and redis.call('ZSCORE', ENDED, ticket) then
  found('it has ended before', forget)
elseif is_whole and t.state == 'pending' and is_program(t.pin) and not is_waited_for(ticket) then
  found('it is a program, and nobody waits to run it', forget_program)
elseif is_whole then
  local state = STATES[t.state] and t.state or state_by_its_place(ticket, t)
  look_for_strays(ticket, t, state, found_in)
  look_at_fields(ticket, t, state)
  if GIVEN[state] then
    look_at_claim(ticket, t, state)
  else
    look_at_place(ticket, t, state)
  end
elseif t.state == 'ending' then -- its pool may be gone, and with it the name of its line
  for _, kind in ipairs({ 'pending', 'pinned', 'pinned_in', 'expiring' }) do
    if string.match(found_in, '^[%a_]+') == kind then
      look_for_stray(ticket, found_in)
    end
  end
elseif is_there and not is_claim_of(ticket, t) then -- where it runs, its own end comes
  found('its message is gone, or a part of it', give_up)
end

correct_all(change, ticket, t, found_in)
if change == '1' and #wrong > 0 and is_whole then
  dispatch_ticket(ticket, seed)
end
return { t.task_id or '', t.gpu or '', unpack(wrong) }
