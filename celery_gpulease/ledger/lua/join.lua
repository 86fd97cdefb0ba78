-- A worker registers its GPU and its presence. Refused while another worker is present, but for one known to be `dead`.
-- The dead one's presence may have lapsed already.
-- KEYS: prefix
-- ARGV: gpu instance presence alias index uuid model memory_bytes host pools ttl_ms heartbeat_ms dead seed route
-- Returns: {'joined'} | {'in_use', presence of the other, when it last reported, does it stop (1 or 0)}
--   | {'named', other gpu, and of its worker the same}
-- include: take_up pulse host succeed offline
local gpu, instance, presence, alias, index, uuid, model, memory_bytes = unpack(ARGV)
local host, pools, ttl_ms, heartbeat_ms, dead, seed, route = unpack(ARGV, 9)
local function told_of(one)
  return redis.call('GET', key('worker', one)), redis.call('HGET', key('device', one), 'reported_ms') or '',
    redis.call('HEXISTS', key('closed', one), 'closing')
end

local other = redis.call('GET', key('worker', gpu))
local is_dead = dead ~= '' and (not other or string.find(other, dead, 1, true))

if other and not is_dead and not string.find(other, instance, 1, true) then
  return { 'in_use', told_of(gpu) }
end
for _, name in ipairs({ alias, uuid }) do -- one device, two names: NVML in one environment and none in the other
  local owner = name ~= '' and redis.call('HGET', NAMES, name)
  if owner and owner ~= gpu and redis.call('EXISTS', key('worker', owner)) == 1 then
    return { 'named', owner, told_of(owner) }
  end
end

local named = alias ~= gpu and alias or redis.call('HGET', NAMES, alias) -- with NVML; without, by which it had been
if not named or named == gpu then
  named = redis.call('HGET', key('device', gpu), 'other')
end
local last = redis.call('HGET', key('device', gpu), 'presence')
if not (last and string.find(last, instance, 1, true)) then
  redis.call('HDEL', key('closed', gpu), 'device') -- it looks for itself before it serves
  note_offline(gpu) -- whoever served it before
end
mark_busy(gpu) -- of pools that it may have left
redis.call('ZADD', GPUS, ttl_ms, gpu)
redis.call('ZADD', HEARTBEATS, heartbeat_ms, gpu)
redis.call('HSET', key('device', gpu), 'host', host, 'index', index, 'uuid', uuid, 'alias', alias, 'pools', pools,
  'ttl_ms', ttl_ms, 'heartbeat_ms', heartbeat_ms, 'presence', presence, 'route', route, 'model', model,
  'memory_bytes', memory_bytes, 'other', named or '')
devices[gpu] = nil
redis.call('HSET', NAMES, alias, gpu, gpu, gpu)
if named and named ~= '' then
  succeed(gpu, named, alias)
end
redis.call('HDEL', key('device', gpu), 'running', 'reported_ms', 'is_offline')
redis.call('HDEL', key('closed', gpu), 'closing')
if is_dead then -- while the dead one's presence is there: what stops half-way is done again
  take_up_from(dead, gpu, 'taken over', seed)
else
  local claim = redis.call('HMGET', key('claim', gpu), 'state', 'ticket')
  local is_tail = not other and claim[1] == 'tail'
  if is_tail and not is_program(redis.call('HGET', key('ticket', claim[2]), 'pin')) then
    take_up(gpu, 'taken over', seed) -- presence was its only proof of life
  end
end
redis.call('SET', key('worker', gpu), presence, 'PX', ttl_ms)
beat_pulse(gpu)
tell_neighbours(host, gpu)
return { 'joined' }
