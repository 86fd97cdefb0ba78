-- include: dispatch
-- Redis was emptied, or has loaded an old snapshot: what it knows of a GPU may be older than the run that is there.
local function has_forgotten(gpu, token)
  local fence = tonumber(string.match(token, '%d+$')) or 0 -- 0 where somebody else has made that token
  return fence > (tonumber(redis.call('GET', key('fence', gpu))) or 0)
end

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
  redis.call('HSETNX', name, 'first_run_ms', NOW)
  redis.call('HSET', name, 'last_run', token)
end
