-- include: claim
-- Gives whoever waits in a pool to the GPUs that are free, or believed to be.
local GPUS_PER_CALL = 8

-- `wanted`: once this ticket has its GPU, nobody else can be waiting for one that is free.
local function dispatch_pool(pool, wanted, seed)
  for _ = 1, GPUS_PER_CALL do
    local gpu = redis.call('ZRANGE', key('free', pool), 0, 0)[1]
    if not gpu then
      return
    end
    local word, ticket = claim_next(gpu, false, seed)
    if word == 'idle' or ticket == wanted then
      return
    end
  end
end

-- The GPU that a pin names: by its id, or by its other name.
local function pinned_gpu(pin)
  return redis.call('HGET', NAMES, pin) or pin
end

local function dispatch_ticket(ticket, seed)
  local t = redis.call('HMGET', key('ticket', ticket), 'pool', 'pin', 'expires_ms')
  if not t[1] then
    return
  end
  if t[2] == '' then
    dispatch_pool(t[1], ticket, seed)
  elseif redis.call('EXISTS', key('device', pinned_gpu(t[2]))) == 1 then
    claim_next(pinned_gpu(t[2]), false, seed)
  end
  if t[3] ~= '0' then
    tell_if_next(ticket)
  end
end

-- Another GPU's claim that nobody started: its lease and message go, the ticket is the caller's to place.
local function unclaim(gpu)
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token')
  withdraw_message(gpu)
  if not has_vanished(claim[1]) then
    redis.call('HINCRBY', key('ticket', claim[1]), 'deliveries', -1)
  end
  drop_claim(gpu, claim[2])
  mark_free_if_claimable(gpu)
end
