-- include: gpu ticket message
-- CLAIM and ROUTE: the lease of a free GPU for whoever is first in its lines. `seed` makes the tokens of this call
-- unlike any other's.
local EXPIRED_PER_CALL, VANISHED_PER_CALL = 16, 16

local function next_fence(gpu)
  local fence = math.max((tonumber(redis.call('GET', key('fence', gpu))) or 0) + 1, NOW)
  redis.call('SET', key('fence', gpu), string.format('%.0f', fence))
  return fence
end

-- Pinned tickets first (by the id, then by the other name), then the pools in their order.
local function lines_of(gpu)
  local lines, alias = { key('pinned', gpu) }, device_of(gpu)[4]
  if alias and alias ~= gpu then
    lines[#lines + 1] = key('pinned', alias)
  end
  for pool in pools_of(gpu) do
    lines[#lines + 1] = key('pending', pool)
  end
  return lines
end

-- The ticket itself is gone: which pool it was of is not known, most likely one of this GPU's.
local function drop_vanished(ticket, line, gpu)
  redis.call('ZREM', line, ticket)
  take_out(ticket)
  for pool in pools_of(gpu) do
    redis.call('ZREM', key('pinned_in', pool), ticket)
  end
  has_vanished(ticket)
end

-- The first ticket that has not expired and what a claim must know of it, or nil. What has expired goes to its end.
local function first_in_line(gpu)
  for _, line in ipairs(lines_of(gpu)) do
    for _ = 1, EXPIRED_PER_CALL do
      local ticket = redis.call('ZRANGE', line, 0, 0)[1]
      if not ticket then
        break
      end
      local t = redis.call('HMGET', key('ticket', ticket), 'expires_ms', 'pool', 'pin', 'deliveries', 'task_id')
      local expires_ms = t[2] and tonumber(t[1])
      if expires_ms == 0 or (expires_ms and expires_ms > NOW) then
        task_ids[ticket] = t[5]
        return ticket, t
      elseif expires_ms then
        take_out(ticket)
        mark_ending(ticket, 'expired')
      else
        drop_vanished(ticket, line, gpu)
      end
    end
  end
  return nil
end

-- Answers false where the message is gone: such a ticket ends, since nobody can run it or write its end.
local function claim_for(ticket, t, gpu, seed)
  local fence = next_fence(gpu)
  local token = string.format('%s-%s-%.0f', seed, gpu, fence) -- a call may claim several GPUs, with equal fences
  local delivery = (tonumber(t[4]) or 0) + 1
  local message = assemble(ticket, gpu, token, fence, delivery)
  if not message then
    note('vanished', ticket, gpu, 'its message is gone')
    take_out(ticket)
    end_ticket(ticket)
    return false
  end
  pass_lease(gpu, token)
  redis.call('HSET', key('claim', gpu), 'ticket', ticket, 'token', token, 'fence', fence, 'state', 'claimed',
    'claimed_ms', NOW, 'delivery', delivery)
  leave_line(ticket, t[2], t[3], t[1])
  redis.call('HSET', key('ticket', ticket), 'state', 'claimed', 'gpu', gpu, 'token', token, 'deliveries', delivery)
  mark_busy(gpu)
  redis.call('LPUSH', route_to(gpu), message)
  note('claimed', ticket, gpu, '')
  return true
end

-- Whose GPU it now is, or nil: nobody waits.
local function claim_first(gpu, seed)
  for _ = 1, VANISHED_PER_CALL do
    local ticket, t = first_in_line(gpu)
    if not ticket or claim_for(ticket, t, gpu, seed) then
      return ticket
    end
  end
end

-- Replies with a word and, when it is 'claimed', the ticket: 'closed' (not claimable), 'idle' (nobody waits).
local function claim_next(gpu, own, seed)
  if not is_claimable(gpu, own) then
    mark_busy(gpu)
    return 'closed'
  end
  local ticket = claim_first(gpu, seed)
  if ticket then
    return 'claimed', ticket
  end
  mark_free(gpu)
  return 'idle'
end
