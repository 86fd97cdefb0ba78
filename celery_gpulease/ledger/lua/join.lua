-- A worker registers its GPU and its presence. Refused while another worker is present, but for one known to be `dead`.
-- The dead one's presence may have lapsed already.
-- KEYS: prefix
-- ARGV: gpu instance presence alias index uuid host pools ttl_ms heartbeat_ms dead seed route
-- Returns: {'joined'} | {'in_use', presence of the other, when it last reported, does it stop (1 or 0)}
--   | {'named', other gpu}
-- include: take_up pulse host
local gpu, instance, presence, alias, index, uuid, host, pools, ttl_ms, heartbeat_ms, dead, seed, route = unpack(ARGV)
local other = redis.call('GET', key('worker', gpu))
local is_dead = dead ~= '' and (not other or string.find(other, dead, 1, true))

if other and not is_dead and not string.find(other, instance, 1, true) then
  return { 'in_use', other, redis.call('HGET', key('device', gpu), 'reported_ms') or '',
    redis.call('HEXISTS', key('closed', gpu), 'closing') }
end
for _, name in ipairs({ alias, uuid }) do -- one device, two names: NVML in one environment and none in the other
  local owner = name ~= '' and redis.call('HGET', NAMES, name)
  if owner and owner ~= gpu and redis.call('EXISTS', key('worker', owner)) == 1 then
    return { 'named', owner }
  end
end

mark_busy(gpu) -- of pools that it may have left
redis.call('ZADD', GPUS, ttl_ms, gpu)
redis.call('ZADD', HEARTBEATS, heartbeat_ms, gpu)
redis.call('HSET', key('device', gpu), 'host', host, 'index', index, 'uuid', uuid, 'alias', alias, 'pools', pools,
  'ttl_ms', ttl_ms, 'heartbeat_ms', heartbeat_ms, 'presence', presence, 'route', route)
devices[gpu] = nil
redis.call('HSET', NAMES, alias, gpu, gpu, gpu)
redis.call('HDEL', key('device', gpu), 'running', 'reported_ms')
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
