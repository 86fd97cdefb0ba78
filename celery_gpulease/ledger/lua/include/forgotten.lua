-- include: dispatch fence
-- What a run brings back that Redis has forgotten.

-- It was over before that run began; how it ended is forgotten too. One that nobody started yields by itself.
local function drop_older_claim(gpu, token)
  local claim = redis.call('HMGET', key('claim', gpu), 'ticket', 'token', 'state')
  local lease = redis.call('GET', key('lease', gpu))
  if claim[1] and claim[2] ~= token and claim[3] ~= 'claimed' and (not lease or lease == claim[2]) then
    return_died(claim[1], gpu, 'forgotten')
    drop_claim(gpu, claim[2])
  end
end

-- What its claim and its START wrote.
local function remember_run(gpu, ticket, token, fence)
  local name = key('ticket', ticket)
  redis.call('SET', key('fence', gpu), fence)
  redis.call('HINCRBY', name, 'deliveries', 1)
  redis.call('HINCRBY', name, 'runs', 1)
  redis.call('HSET', name, 'last_run', token, 'first_run_ms', redis.call('HGET', name, 'first_run_ms') or NOW)
end
