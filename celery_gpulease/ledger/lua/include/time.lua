-- include: keys
-- The server's time in milliseconds: the only clock that decides anything.
local SECONDS, MICROSECONDS = unpack(redis.call('TIME'))
local NOW = SECONDS * 1000 + math.floor(MICROSECONDS / 1000)
