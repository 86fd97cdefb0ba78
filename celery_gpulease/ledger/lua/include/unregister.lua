-- include: gpu
-- The registry has a GPU no more, nor those of these names that are its own. Last what names it, so that what stops
-- half-way can be done again.
local function unregister(gpu, names)
  mark_busy(gpu)
  for _, name in ipairs(names) do
    if redis.call('HGET', NAMES, name) == gpu then
      redis.call('HDEL', NAMES, name)
    end
  end
  redis.call('ZREM', GPUS, gpu)
  redis.call('ZREM', HEARTBEATS, gpu)
  redis.call('DEL', key('device', gpu))
end
