-- include: unregister
-- A device has gone by another name until now, with NVML or without: what closed it there closes it still, and that name
-- is no GPU of its own any more, once nothing is claimed there. Nothing is done while a worker serves that name, or where
-- it is another place's by now.
local function succeed(gpu, other, alias)
  if redis.call('HGET', key('device', other), 'alias') ~= alias or redis.call('EXISTS', key('worker', other)) == 1 then
    return
  end
  local closed = redis.call('HGETALL', key('closed', other))
  for at = 1, #closed, 2 do
    if closed[at] ~= 'closing' and closed[at] ~= 'device' then
      redis.call('HSET', key('closed', gpu), closed[at], closed[at + 1])
    end
  end
  redis.call('DEL', key('closed', other))
  if redis.call('EXISTS', key('claim', other), key('lease', other)) > 0 then
    return
  end
  unregister(other, { other })
  redis.call('HSET', NAMES, other, gpu)
end
