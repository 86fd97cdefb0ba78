-- What is due enters its line, in due order; what has expired goes to its end. A bounded number each call.
-- KEYS: prefix
-- ARGV: seed
-- Returns: {number promoted, number expired}
-- include: dispatch
local seed = unpack(ARGV)
local MOST_DUE, MOST_EXPIRED = 4, 4 -- each may give away as many GPUs as a dispatch does

local expired = redis.call('ZRANGEBYSCORE', EXPIRING, '-inf', NOW, 'LIMIT', 0, MOST_EXPIRED)
for _, ticket in ipairs(expired) do
  take_out(ticket)
  if not has_vanished(ticket) then
    mark_ending(ticket, 'expired', is_after_a_run(ticket))
  end
end
local due = redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', NOW, 'LIMIT', 0, MOST_DUE)
for _, ticket in ipairs(due) do
  take_out(ticket)
  if is_after_a_run(ticket) then
    put_in_schedule(ticket, NOW + LONGEST_AFTER_RUN_MS)
  elseif not has_vanished(ticket) then -- what was deferred has a place already
    redis.call('HDEL', key('ticket', ticket), 'after')
    put_in_line(ticket, tonumber(redis.call('HGET', key('ticket', ticket), 'score') or nil))
    note('promoted', ticket, '', '')
  end
end
for _, tickets in ipairs({ due, expired }) do -- what has expired may have hidden others from a claim
  for _, ticket in ipairs(tickets) do
    dispatch_ticket(ticket, seed)
  end
end
return { #due, #expired }
