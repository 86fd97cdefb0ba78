-- include: keys
-- The GPUs of one host: the registry names each of them <host>:<index>.
local MOST_GPUS = 64

local function gpus_of(host)
  local names, found = {}, {}
  for index = 1, MOST_GPUS do
    names[index] = host .. ':' .. index - 1
  end
  for _, gpu in pairs(redis.call('HMGET', NAMES, unpack(names))) do
    if gpu then
      found[#found + 1] = gpu
    end
  end
  return found
end

-- Those who watch it must know of each worker there, and of a new one at once.
local function tell_neighbours(host, gpu)
  for _, other in ipairs(gpus_of(host)) do
    if other ~= gpu then
      redis.pcall('PUBLISH', key('here', other), 'neighbour')
    end
  end
end
