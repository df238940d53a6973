-- KEYS: ready, delayed, processing, deadlines, claims
local ready, delayed, processing, deadlines, claims = unpack(KEYS)
local second = math.floor(now())
local lapsed = redis.call('zcount', deadlines, '-inf', second)
for _, token in ipairs(lapsed_claims(claims, second, SLICE)) do
    lapsed = lapsed + redis.call('llen', list_of(processing, token))
end
return redis.call('llen', ready) + redis.call('zcount', delayed, '-inf', second) + lapsed
