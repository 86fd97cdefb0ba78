-- A worker registers its GPU and its presence. Refused while another worker of this GPU is present.
-- KEYS: prefix
-- ARGV: gpu instance presence alias index uuid host pools ttl_ms heartbeat_ms
-- Returns: {'joined'} | {'in_use', presence of the other, when it last reported} | {'named', other gpu}
-- include: gpu pulse
local gpu, instance, presence, alias, index, uuid, host, pools, ttl_ms, heartbeat_ms = unpack(ARGV)
local other = redis.call('GET', key('worker', gpu))

if other and not string.find(other, instance, 1, true) then
  return { 'in_use', other, redis.call('HGET', key('device', gpu), 'reported_ms') or '' }
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
  'ttl_ms', ttl_ms, 'heartbeat_ms', heartbeat_ms)
redis.call('HSET', NAMES, alias, gpu, gpu, gpu)
redis.call('HDEL', key('device', gpu), 'running', 'reported_ms')
redis.call('HDEL', key('closed', gpu), 'closing')
redis.call('SET', key('worker', gpu), presence, 'PX', ttl_ms)
beat_pulse(gpu)
return { 'joined' }
