-- KEYS: ready, delayed, reserved
-- ARGV: count lapsed claims ('1')
local ready, delayed, reserved = unpack(KEYS)
local second = math.floor(now())
local lapsed = ARGV[1] == '1' and redis.call('zcount', reserved, '-inf', second) or 0
return redis.call('llen', ready) + redis.call('zcount', delayed, '-inf', second) + lapsed
