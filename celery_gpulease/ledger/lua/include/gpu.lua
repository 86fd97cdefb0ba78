-- include: keys time journal
-- What is true of a GPU: whether its worker lives, whether it may be claimed, and the index of free ones.
local devices = {}

-- Of what its worker said when it joined: pools, route, ttl_ms, alias, host, other (another name, by which programs that
-- are not ours may go; or ''). Read once in a call; JOIN alone writes it.
local function device_of(gpu)
  if not devices[gpu] then
    devices[gpu] = redis.call('HMGET', key('device', gpu), 'pools', 'route', 'ttl_ms', 'alias', 'host', 'other')
  end
  return devices[gpu]
end

local function pools_of(gpu)
  return string.gmatch(device_of(gpu)[1] or '', '[^,]+')
end

-- The index of free GPUs is never the truth: a claim looks at the lease.
local function mark_free(gpu)
  for pool in pools_of(gpu) do
    redis.call('ZADD', key('free', pool), 'NX', NOW, gpu)
  end
end

local function mark_busy(gpu)
  for pool in pools_of(gpu) do
    redis.call('ZREM', key('free', pool), gpu)
  end
end

-- Does somebody listen to this `here` channel? Yes, where the server does not let us ask.
local function has_listener(name)
  local count = redis.pcall('PUBSUB', 'NUMSUB', key('here', name))
  return count.err ~= nil or tonumber(count[2]) > 0
end

-- Presence alone is up to a ttl old; a subscription alone outlives a power cut. So both.
local function is_alive(gpu)
  return redis.call('EXISTS', key('worker', gpu)) == 1 and has_listener(gpu)
end

-- Why no claim is made, or nil. A quarantine ends by what the GPU's worker says.
local function why_closed(gpu)
  local closed = redis.call('HMGET', key('closed', gpu), 'drain', 'closing', 'quarantine', 'device')
  return (closed[1] and 'drain') or (closed[2] and 'closing') or ((closed[3] or closed[4]) and 'quarantine') or nil
end

-- The list from which this GPU's worker takes its messages, as it said when it joined; false where it is not known.
local function route_to(gpu)
  return device_of(gpu)[2]
end

-- Has its worker joined, and does Redis remember what it said?
local function is_registered(gpu)
  local device = device_of(gpu)
  return device[1] and device[2] and device[3]
end

-- Has somebody the device by its other name, or wants it so?
local function is_taken_as_other(gpu)
  local other = device_of(gpu)[6] or ''
  return other ~= '' and redis.call('EXISTS', key('lease', other), key('want', other), key('claim', other)) > 0
end

-- `own`: the GPU's worker asks for itself and needs no proof that it lives.
local function is_in_service(gpu, own)
  return not why_closed(gpu) and (own or is_alive(gpu)) and route_to(gpu) ~= false and not is_taken_as_other(gpu)
end

-- Is there nothing but a lease that could keep it from the next task?
local function takes_work(gpu)
  return redis.call('EXISTS', key('want', gpu), key('claim', gpu)) == 0 and is_in_service(gpu, false)
end

local function is_claimable(gpu, own)
  return redis.call('EXISTS', key('lease', gpu), key('want', gpu), key('claim', gpu)) == 0 and is_in_service(gpu, own)
end

-- A lease, or a wish, by whichever name of the device it goes (ours is under the id): its value, or false; and its key.
local function by_any_name(kind, gpu)
  local value, other = redis.call('GET', key(kind, gpu)), device_of(gpu)[6] or ''
  local others = not value and other ~= '' and redis.call('GET', key(kind, other))
  if others then
    return others, key(kind, other)
  end
  return value, key(kind, gpu)
end

-- The claim is over; the lease key goes when it is still this claim's.
local function drop_claim(gpu, token)
  local is_held = redis.call('GET', key('lease', gpu)) == token
  if is_held then
    redis.call('DEL', key('lease', gpu))
  end
  if redis.call('HGET', key('claim', gpu), 'token') == token then
    redis.call('DEL', key('claim', gpu))
    redis.call('ZREM', DEADLINES, gpu)
    if not is_held then -- no key vanishes, and the GPU is free all the same: a tail has ended
      redis.pcall('PUBLISH', key('here', gpu), 'lease')
    end
  end
end

local function mark_free_if_claimable(gpu)
  if is_claimable(gpu, false) then
    mark_free(gpu)
  end
end

local function ttl_ms_of(gpu)
  return tonumber(device_of(gpu)[3]) or 30000
end

-- The lease is `token`'s for a ttl, from now by the server's clock.
local function hold_lease(gpu, token)
  local ttl_ms = ttl_ms_of(gpu)
  redis.call('SET', key('lease', gpu), token, 'PX', ttl_ms)
  redis.call('ZADD', DEADLINES, NOW + ttl_ms, gpu)
end

-- The same, but for the first tenth of a ttl the end that it has is late enough: each new end is an event, which wakes
-- the GPU's worker in the very moment between two tasks.
local function pass_lease(gpu, token)
  local left_ms = redis.call('PTTL', key('lease', gpu))
  local ttl_ms = ttl_ms_of(gpu)
  if left_ms > ttl_ms * 0.9 and left_ms <= ttl_ms then
    redis.call('SET', key('lease', gpu), token, 'KEEPTTL')
    redis.call('ZADD', DEADLINES, NOW + left_ms, gpu)
  else
    hold_lease(gpu, token)
  end
end

-- A tail holds no lease, and is looked at like one: it lives while its heartbeat says so.
local function prolong_tail(gpu)
  redis.call('ZREM', DEADLINES, gpu) -- a full server allows this write, and with it all that follow
  redis.call('ZADD', DEADLINES, NOW + ttl_ms_of(gpu), gpu)
end

-- The run goes on as its tail: given back early, robbed or forced. A lease that is still its own goes.
local function run_on_without_lease(gpu, ticket, token, why)
  prolong_tail(gpu)
  redis.call('HSET', key('ticket', ticket), 'state', 'tail', 'why', why)
  redis.call('HSET', key('claim', gpu), 'state', 'tail')
  if redis.call('GET', key('lease', gpu)) == token then
    redis.call('DEL', key('lease', gpu))
  end
end

-- The same for a lease that is there; first a write that a full server still allows.
local function prolong_lease(gpu)
  local ttl_ms = ttl_ms_of(gpu)
  redis.call('PEXPIRE', key('lease', gpu), ttl_ms)
  redis.call('ZADD', DEADLINES, NOW + ttl_ms, gpu)
end
