-- include: dispatch correct
-- Where a ticket belongs, and where else it stands: for the reconciler, who finds what no operation leaves behind.
local GIVEN = { claimed = true, started = true, tail = true }
local STATES = { pending = true, scheduled = true, ending = true, claimed = true, started = true, tail = true }

local function is_claim_of(ticket, t)
  local claim = redis.call('HMGET', key('claim', t.gpu or ''), 'ticket', 'token')
  return claim[1] == ticket and claim[2] == t.token
end

-- Its lease is there, or its worker's last report, younger than two heartbeats, says that it runs.
local function is_held_for(gpu, token)
  local device = fields_of(key('device', gpu), 'running', 'reported_ms', 'heartbeat_ms')
  local is_recent = math.abs(NOW - (tonumber(device.reported_ms) or 0)) < 2 * (tonumber(device.heartbeat_ms) or 0)
  return redis.call('GET', key('lease', gpu)) == token or (is_recent and device.running == token)
end

local function state_by_its_place(ticket, t)
  if is_claim_of(ticket, t) then
    return redis.call('HGET', key('claim', t.gpu), 'state')
  elseif redis.call('ZSCORE', ENDING, ticket) then
    return 'ending'
  end
  return redis.call('ZSCORE', SCHEDULED, ticket) and 'scheduled' or 'pending'
end

-- It was seen in a place; is it there still? `place` is the name of a zset after our prefix, or of a task's hash.
local function stands_in(ticket, place)
  if string.find(place, 'task:', 1, true) == 1 then
    return redis.call('HEXISTS', prefix .. place, ticket) == 1
  end
  return place ~= '' and redis.call('ZSCORE', prefix .. place, ticket)
end

local function look_for_stray(ticket, place)
  if stands_in(ticket, place) then
    found('it stands wrongly in ' .. place, function()
      redis.call('ZREM', prefix .. place, ticket)
    end)
  end
end

local function look_for_strays(ticket, t, state, found_in)
  local line, index = string.sub(line_of(t.pool, t.pin or ''), #prefix + 1), 'pinned_in:' .. t.pool
  if state ~= 'pending' then
    look_for_stray(ticket, line)
  end
  if state ~= 'pending' or t.pin == '' then
    look_for_stray(ticket, index)
  end
  if state ~= 'ending' then
    look_for_stray(ticket, 'ending')
  end
  if tonumber(t.expires_ms or 0) == 0 or (state ~= 'pending' and state ~= 'scheduled') then
    look_for_stray(ticket, 'expiring')
  end
  if state ~= 'scheduled' and redis.call('ZSCORE', SCHEDULED, ticket) then
    found('it stands wrongly in scheduled', function()
      unschedule(ticket, t.pool)
    end)
  end
  local kind = string.match(found_in, '^([%a_]+):')
  if kind == 'task' and found_in ~= 'task:' .. t.task_id and stands_in(ticket, found_in) then
    found('it stands wrongly in ' .. found_in, function()
      redis.call('HDEL', prefix .. found_in, ticket)
    end)
  elseif kind and kind ~= 'task' and found_in ~= line and found_in ~= index then
    look_for_stray(ticket, found_in)
  end
end

-- It stands nowhere any more. `t` may lack any part.
local function take_out_everywhere(ticket, t, found_in)
  redis.call('ZREM', EXPIRING, ticket)
  redis.call('ZREM', ENDING, ticket)
  unschedule(ticket, t.pool)
  if t.pool then
    redis.call('ZREM', line_of(t.pool, t.pin or ''), ticket)
    redis.call('ZREM', key('pinned_in', t.pool), ticket)
  end
  if found_in ~= '' then
    redis.call(string.find(found_in, 'task:', 1, true) == 1 and 'HDEL' or 'ZREM', prefix .. found_in, ticket)
  end
end

-- Nothing of it is left but its id.
local function forget(ticket, t, found_in)
  take_out_everywhere(ticket, t, found_in)
  if not redis.call('ZSCORE', ENDED, ticket) then
    note('vanished', ticket, '', 'found by the reconciler')
  end
  end_ticket(ticket)
end

-- It lacks what it takes to run it; where it can still be said whose it was, its end is written.
local function give_up(ticket, t, found_in)
  if t.task_id and t.task and redis.call('EXISTS', key('message', ticket)) == 1 then
    take_out_everywhere(ticket, t, found_in)
    redis.call('HSET', key('ticket', ticket), 'deliveries', t.deliveries or 0)
    mark_ending(ticket, 'damaged')
  else
    forget(ticket, t, found_in)
  end
end

-- Do the indexes of its line know it?
local function is_listed(ticket, t)
  return redis.call('SISMEMBER', LINES, string.sub(line_of(t.pool, t.pin), #prefix + 1)) == 1
    and (t.pin == '' or (redis.call('ZSCORE', key('pinned_in', t.pool), ticket)
      and redis.call('SISMEMBER', LINES, 'pinned_in:' .. t.pool) == 1))
end

-- Its place lacks it, or knows it by another number.
local function look_at_place(ticket, t, state)
  local expires_ms = tonumber(t.expires_ms) or 0
  local is_astray = expires_ms > 0 and tonumber(redis.call('ZSCORE', EXPIRING, ticket)) ~= expires_ms
  if state == 'pending' then
    local stands = redis.call('ZSCORE', line_of(t.pool, t.pin or ''), ticket)
    is_astray = is_astray or not stands or tonumber(stands) ~= tonumber(t.score)
      or not is_listed(ticket, t)
    if is_astray then
      found(stands and 'its line and its indexes disagree' or 'it stands in no line', function()
        put_in_line(ticket, tonumber(t.score or stands or nil))
      end)
    end
  elseif state == 'scheduled' and (is_astray or not redis.call('ZSCORE', SCHEDULED, ticket)) then
    found('it stands in no schedule, or not among those that expire', function()
      local is_new = redis.call('ZADD', SCHEDULED, 'NX', tonumber(t.eta_ms) or NOW, ticket)
      redis.call('HINCRBY', SCHEDULED_COUNT, t.pool, is_new)
      if expires_ms > 0 then
        redis.call('ZADD', EXPIRING, expires_ms, ticket)
      end
    end)
  elseif state == 'ending' and not redis.call('ZSCORE', ENDING, ticket) then
    found('its end would never be written', function()
      redis.call('ZADD', ENDING, NOW, ticket)
      redis.call('HSET', key('ticket', ticket), 'why', t.why or 'lease_lost')
    end)
  elseif state == 'ending' and redis.call('ZSCORE', ENDING, ticket) - NOW > LONGEST_AFTER_RUN_MS then
    found('its end would be written too late', function() -- the clock was stepped back since
      redis.call('ZADD', ENDING, NOW, ticket)
    end)
  end
end

local function give_claim_again(ticket, t, state)
  redis.call('HSET', key('claim', t.gpu), 'ticket', ticket, 'token', t.token, 'state', state, 'claimed_ms', NOW,
    'started_ms', NOW, 'fence', string.match(t.token, '%d+$') or NOW, 'delivery', t.deliveries or 1)
  if state == 'tail' then
    prolong_tail(t.gpu)
  else
    redis.call('ZADD', DEADLINES, NOW + math.max(0, redis.call('PTTL', key('lease', t.gpu))), t.gpu)
  end
  mark_busy(t.gpu)
end

-- Its GPU's claim is gone, or another's: what runs gets it back, anything else goes back to its place.
local function look_at_claim(ticket, t, state)
  local claim_state = redis.call('HGET', key('claim', t.gpu or ''), 'state')
  if is_claim_of(ticket, t) then
    if claim_state ~= state then
      found('its claim is in another state', function()
        redis.call('HSET', key('claim', t.gpu), 'state', state)
      end)
    end
  elseif not (t.gpu and t.token and is_held_for(t.gpu, t.token)) then
    found('no GPU has it', function()
      if state == 'claimed' then
        back_to_place(ticket, t.gpu, 'reconciled', false)
      else
        return_died(ticket, t.gpu, 'reconciled')
      end
    end)
  elseif not claim_state then -- where the GPU is claimed for another, the run's RENEW decides
    found('its claim is gone', function()
      give_claim_again(ticket, t, state)
    end)
  end
end

-- What the ticket itself says, and the hash that names it.
local function look_at_fields(ticket, t, state)
  local name = key('ticket', ticket)
  if t.state ~= state then
    found('it is in no state that we know', function()
      redis.call('HSET', name, 'state', state)
    end)
  end
  if t.token and not GIVEN[state] then
    found('it has a token, and no GPU', function()
      redis.call('HDEL', name, 'token', 'nonce', 'gpu')
    end)
  end
  if redis.call('HEXISTS', key('task', t.task_id), ticket) == 0 then
    found('its task does not know it', function()
      redis.call('HSET', key('task', t.task_id), ticket, '')
    end)
  end
  for _, count in ipairs({ 'deliveries', 'returns' }) do
    if t[count] and (tonumber(t[count]) or -1) < 0 then
      found('its count of ' .. count .. ' is wrong', function()
        redis.call('HDEL', name, count)
      end)
    end
  end
  local arrival = (tonumber(t.score) or 0) % PRIORITY_STEP
  if arrival > (tonumber(redis.call('GET', ARRIVAL)) or 0) then
    found('it came after the last arrival', function()
      redis.call('SET', ARRIVAL, string.format('%.0f', arrival))
    end)
  end
end
