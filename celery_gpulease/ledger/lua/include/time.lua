-- include: keys
-- The server's time in milliseconds: the only clock that decides anything.
local NOW
do
  local time = redis.call('TIME')
  NOW = time[1] * 1000 + math.floor(time[2] / 1000)
end
