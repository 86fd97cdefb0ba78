-- What the last workers of a host's GPUs said of themselves, also where their presence has lapsed.
-- KEYS: prefix
-- ARGV: host
-- Returns: for each GPU whose worker did not leave {gpu, presence}
-- include: host
local host = ARGV[1]
local found = {}

for _, gpu in ipairs(gpus_of(host)) do
  local presence = redis.call('HGET', key('device', gpu), 'presence')
  if presence then
    found[#found + 1] = { gpu, presence }
  end
end
return found
