-- include: dispatch correct
-- What one GPU's keys say of each other: for the reconciler, who finds what no operation leaves behind.
local DEADLINE_TOLERANCE_MS = 1000

-- What lasts for longer is of a clock that was stepped back since.
local function longest_ms(gpu)
  return ttl_ms_of(gpu) + DEADLINE_TOLERANCE_MS
end

local function is_token(lease)
  return lease and string.match(lease, '^%x+%-.+%-%d+$') and #string.match(lease, '^%x+') == 32
end

local function look_at_registry(gpu, device, found_in)
  for at, name in ipairs({ 'gpus', 'heartbeats' }) do
    local said, value = redis.call('ZSCORE', prefix .. name, gpu), ({ device.ttl_ms, device.heartbeat_ms })[at]
    if said and not device.pools then
      found(name .. ' has it, and no worker has registered it', function()
        redis.call('ZREM', prefix .. name, gpu)
      end)
    elseif value and tonumber(said or nil) ~= tonumber(value) then
      found(name .. ' does not say what its worker said', function()
        redis.call('ZADD', prefix .. name, value, gpu)
      end)
    end
  end
  local name = string.match(found_in, '^names:(.+)$')
  if name and not device.pools and redis.call('HGET', NAMES, name) == gpu then
    found('no worker has registered it, and it is what ' .. name .. ' names', function()
      redis.call('HDEL', NAMES, name)
    end)
  end
  local pool = string.match(found_in, '^free:(.+)$')
  local serves = pool and string.find(',' .. (device.pools or '') .. ',', ',' .. pool .. ',', 1, true)
  if pool and not serves and redis.call('ZSCORE', key('free', pool), gpu) then
    found('it does not serve pool ' .. pool, function()
      redis.call('ZREM', key('free', pool), gpu)
    end)
  end
  if redis.call('PTTL', key('worker', gpu)) == -1 then
    found('its presence has no TTL', function()
      redis.call('PEXPIRE', key('worker', gpu), ttl_ms_of(gpu))
    end)
  elseif redis.call('PTTL', key('worker', gpu)) > longest_ms(gpu) then
    found('its presence outlasts its ttl', function()
      redis.call('PEXPIRE', key('worker', gpu), ttl_ms_of(gpu))
    end)
  end
end

local function look_at_lease(gpu, claim, lease, lease_ms)
  if lease and lease == claim.token and claim.state == 'tail' then
    found('its lease is held for a run that gave it back', function()
      redis.call('DEL', key('lease', gpu))
    end)
  elseif lease_ms == -1 and lease == claim.token then
    found('its lease has no TTL', function()
      prolong_lease(gpu)
    end)
  elseif lease_ms == -1 and is_token(lease) then
    found('its lease has no TTL, and no claim', function()
      redis.call('PEXPIRE', key('lease', gpu), ttl_ms_of(gpu))
    end)
  elseif lease == claim.token and lease_ms > longest_ms(gpu) then
    found('its lease outlasts its ttl', function()
      prolong_lease(gpu)
    end)
  end
end

local function look_at_deadline(gpu, claim, lease, lease_ms)
  local deadline, is_held = redis.call('ZSCORE', DEADLINES, gpu), lease and lease == claim.token
  if deadline and not claim.token and not is_token(lease) then
    found('it has a deadline, and nothing that ends', function()
      redis.call('ZREM', DEADLINES, gpu)
    end)
  elseif claim.token and claim.state == 'tail' and not deadline then
    found('it runs on without its lease, and has no deadline', function()
      prolong_tail(gpu)
    end)
  elseif claim.state == 'tail' and deadline - NOW > longest_ms(gpu) then
    found('it runs on without its lease, and its deadline outlasts its ttl', function()
      prolong_tail(gpu)
    end)
  elseif claim.token and claim.state ~= 'tail' and (not deadline
      or (is_held and lease_ms > 0 and math.abs(deadline - NOW - lease_ms) > DEADLINE_TOLERANCE_MS)) then
    found('its deadline is not the end of its lease', function()
      redis.call('ZADD', DEADLINES, NOW + (is_held and math.max(lease_ms, 0) or 0), gpu)
    end)
  end
end
