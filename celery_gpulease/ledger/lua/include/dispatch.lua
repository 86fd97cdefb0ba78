-- include: claim
-- Gives whoever waits in a pool to the GPUs that are free, or believed to be.
local GPUS_PER_CALL = 8

-- `wanted`: once this ticket has its GPU, nobody else can be waiting for one that is free. Has it?
local function dispatch_pool(pool, wanted, seed)
  for _ = 1, GPUS_PER_CALL do
    local gpu = redis.call('ZRANGE', key('free', pool), 0, 0)[1]
    if not gpu then
      return false
    end
    local word, ticket = claim_next(gpu, false, seed)
    if word == 'idle' or ticket == wanted then
      return ticket == wanted
    end
  end
  return false
end

-- The GPU that a pin names: by its id, or by its other name.
local function pinned_gpu(pin)
  return redis.call('HGET', NAMES, pin) or pin
end

-- Answers whether this ticket has a GPU now. `t`: where that is known, its pool, pin, priority and expires_ms.
local function dispatch_ticket(ticket, seed, t)
  t = t or redis.call('HMGET', key('ticket', ticket), 'pool', 'pin', 'priority', 'expires_ms')
  local is_claimed = false
  if not t[1] then
    return false
  elseif t[2] == '' then
    is_claimed = dispatch_pool(t[1], ticket, seed)
  elseif is_program(t[2]) then
    redis.pcall('PUBLISH', key('here', ticket), 'turn') -- who waits to run it looks at the GPUs of its host
  elseif redis.call('EXISTS', key('device', pinned_gpu(t[2]))) == 1 then
    is_claimed = select(2, claim_next(pinned_gpu(t[2]), false, seed)) == ticket
  end
  if t[4] ~= '0' then
    tell_if_next(ticket)
  end
  return is_claimed
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
