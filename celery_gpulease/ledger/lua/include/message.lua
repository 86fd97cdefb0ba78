-- include: gpu
-- Puts a held message together: two holes are filled, nothing is decoded (cjson would change numbers and empty lists).
local QUEUE_HOLE, CLAIM_HOLE = '\1', '\2'

local function fill(message, hole, value)
  local at = string.find(message, hole, 1, true)
  return string.sub(message, 1, at - 1) .. value .. string.sub(message, at + 1)
end

-- nil where the message is gone: evicted, or deleted by hand.
local function assemble(ticket, gpu, token, fence, delivery)
  local message = redis.call('GET', key('message', ticket))
  if not message then
    return nil
  end
  local claim = string.format('{"gpu": "%s", "token": "%s", "fence": %.0f, "delivery": %d}',
    gpu, token, fence, delivery)
  return fill(fill(message, QUEUE_HOLE, 'gpu.' .. gpu), CLAIM_HOLE, claim)
end

-- The message of this GPU's present claim, as ROUTE sent it.
local function routed_message(gpu)
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'fence', 'delivery')
  return assemble(claim[1], gpu, claim[2], tonumber(claim[3]), tonumber(claim[4] or 0))
end

-- Takes the message of this GPU's present claim out of its queue, so that nobody finds it there.
local function withdraw_message(gpu)
  local message = routed_message(gpu)
  if message and route_to(gpu) then
    redis.call('LREM', route_to(gpu), 0, message)
  end
end

-- No claim of this GPU is left: what its queue still has of them kombu has put back there, in its own words, when its
-- consumer stopped. What came past the ledger, without a claim, stays.
local function withdraw_all(gpu)
  local route = route_to(gpu)
  for _, message in ipairs(route and redis.call('LRANGE', route, 0, 99) or {}) do
    if string.find(message, '"claim": {"gpu": "' .. gpu .. '"', 1, true) then
      redis.call('LREM', route, 1, message)
    end
  end
end
