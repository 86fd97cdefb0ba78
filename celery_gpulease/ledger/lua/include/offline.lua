-- include: journal
-- A worker whose presence has lapsed, or whose processes are gone, and who did not leave: the journal says so once.
local function note_offline(gpu)
  local device = redis.call('HMGET', key('device', gpu), 'presence', 'is_offline')
  if device[1] and not device[2] then
    redis.call('HSET', key('device', gpu), 'is_offline', 1)
    note('offline', '', gpu, string.match(device[1], '"worker": "([^"]*)"'))
  end
end
