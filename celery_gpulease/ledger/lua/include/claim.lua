-- include: gpu ticket message
-- CLAIM and ROUTE: the lease of a free GPU for whoever is first in its lines. `seed` makes the tokens of this call
-- unlike any other's.
--
-- A call takes so many that cannot be claimed out of their lines, however many GPUs it looks at; the next takes more,
-- for which the GPU's worker is woken.
local expired_left, vanished_left = 16, 16

local function next_fence(gpu)
  local fence = math.max((tonumber(redis.call('GET', key('fence', gpu))) or 0) + 1, NOW)
  redis.call('SET', key('fence', gpu), string.format('%.0f', fence))
  return fence
end

-- Pinned tickets first (by the id, then by the other names), then the pools in their order: each one's line, and beside
-- it the line of the programs of this host. Where `only_programs` says so, these alone.
local function lines_of(gpu, only_programs)
  local lines, device = {}, device_of(gpu)
  local alias, host, other = device[4], device[5] or '', device[6] or ''
  if not only_programs then
    lines[1] = { key('pinned', gpu) }
    if alias and alias ~= gpu then
      lines[2] = { key('pinned', alias) }
    end
    if other ~= '' and other ~= gpu and other ~= alias then -- its UUID, where its worker has no NVML any more
      lines[#lines + 1] = { key('pinned', other) }
    end
  end
  for pool in pools_of(gpu) do
    local programs = key('pinned', pin_of_program(host, pool))
    lines[#lines + 1] = only_programs and { programs } or { key('pending', pool), programs }
  end
  return lines
end

-- Who stands first in a line, or in the one beside it, whoever has the better place; and in which.
local function first_of(line, beside)
  local ticket, other = redis.call('ZRANGE', line, 0, 0)[1], beside and redis.call('ZRANGE', beside, 0, 0)[1]
  if other and not (ticket
      and tonumber(redis.call('ZSCORE', line, ticket)) < tonumber(redis.call('ZSCORE', beside, other))) then
    return other, beside
  end
  return ticket, line
end

-- Does somebody still wait to run this program? As with a worker, both must say so.
local function is_waited_for(ticket)
  return (tonumber(redis.call('HGET', key('ticket', ticket), 'waits_until')) or 0) > NOW and has_listener(ticket)
end

-- Nobody waits for it any more. Who comes back after all finds its old place: so it has not ended.
local function forget_program(ticket)
  note('left', ticket, '', 'nobody waits to run it')
  take_out(ticket)
  redis.call('HDEL', key('task', ticket), ticket)
  redis.call('DEL', key('ticket', ticket))
end

-- The ticket itself is gone: which pool it was of is not known, most likely one of this GPU's.
local function drop_vanished(ticket, gpu)
  take_out(ticket)
  for pool in pools_of(gpu) do
    redis.call('ZREM', key('pinned_in', pool), ticket)
  end
  has_vanished(ticket)
end

local function has_expired(expires_ms)
  return expires_ms ~= 0 and expires_ms <= NOW
end

-- The first ticket that has not expired and what a claim must know of it, or nil. What has expired goes to its end.
local function first_in_line(gpu, only_programs)
  for _, lines in ipairs(lines_of(gpu, only_programs)) do
    local ticket, line = first_of(lines[1], lines[2])
    while ticket do
      local t = redis.call('HMGET', key('ticket', ticket), 'expires_ms', 'pool', 'pin', 'deliveries', 'task_id',
        'task')
      local expires_ms = t[2] and tonumber(t[1])
      if expires_ms and not has_expired(expires_ms) then
        tasks[ticket] = { t[5], t[6] }
        if not is_program(t[3]) or is_waited_for(ticket) then
          return ticket, t
        end
      end
      if expired_left == 0 then
        break
      end
      expired_left = expired_left - 1
      redis.call('ZREM', line, ticket) -- also where it should never have stood: else it would be first for ever
      if not expires_ms then
        drop_vanished(ticket, gpu)
      elseif has_expired(expires_ms) then
        take_out(ticket)
        mark_ending(ticket, 'expired')
      else
        forget_program(ticket)
      end
      ticket, line = first_of(lines[1], lines[2])
    end
  end
  return nil
end

-- Answers false where the message is gone: such a ticket ends, since nobody can run it or write its end.
local function claim_for(ticket, t, gpu, seed)
  local fence = next_fence(gpu)
  local token = string.format('%s-%s-%.0f', seed, gpu, fence) -- a call may claim several GPUs, with equal fences
  local delivery = (tonumber(t[4]) or 0) + 1
  local is_message = not is_program(t[3])
  local message = is_message and assemble(ticket, gpu, token, fence, delivery)
  if is_message and not message then
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
  if message then
    redis.call('LPUSH', route_to(gpu), message)
  else
    redis.pcall('PUBLISH', key('here', ticket), 'claimed') -- a program asks what has become of it
  end
  note('claimed', ticket, gpu, '')
  return true
end

-- Whose GPU it now is, or nil: nobody waits.
local function claim_first(gpu, seed, only_programs)
  local ticket, t = first_in_line(gpu, only_programs)
  while ticket and not claim_for(ticket, t, gpu, seed) do
    if vanished_left == 0 then
      return nil
    end
    vanished_left = vanished_left - 1
    ticket, t = first_in_line(gpu, only_programs)
  end
  return ticket
end

-- A program needs no worker: it may have a free GPU of its host that nobody serves, unless that one is drained, something
-- is left there, or its device was unwell. What its last worker did not start says nothing against the GPU.
local function is_for_programs(gpu)
  if redis.call('EXISTS', key('lease', gpu), key('want', gpu), key('claim', gpu)) > 0 or is_alive(gpu)
      or is_taken_as_other(gpu) then
    return false
  end
  local closed = redis.call('HMGET', key('closed', gpu), 'drain', 'left', 'device')
  return not (closed[1] or closed[2] or closed[3])
end

-- Replies with a word and, when it is 'claimed', the ticket: 'closed' (not claimable), 'idle' (nobody waits).
local function claim_next(gpu, own, seed)
  local is_open = is_claimable(gpu, own)
  if not is_open then
    mark_busy(gpu)
  end
  local ticket = (is_open or is_for_programs(gpu)) and claim_first(gpu, seed, not is_open)
  if ticket then
    return 'claimed', ticket
  elseif not is_open then
    return 'closed'
  end
  mark_free(gpu)
  if expired_left == 0 or vanished_left == 0 then
    redis.pcall('PUBLISH', key('here', gpu), 'lease')
  end
  return 'idle'
end
