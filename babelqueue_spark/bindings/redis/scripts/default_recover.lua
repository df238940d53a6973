-- KEYS: ready, processing, deadlines, claims
-- ARGV: most lapsed messages to move, of either kind of claim
-- Returns how many messages went back, and how many lapsed claims are left.
local ready, processing, deadlines, claims = unpack(KEYS)
local second = math.floor(now())

redis.call('llen', ready)
redis.call('llen', processing)
redis.call('zcard', claims)
open_for_writes(deadlines)

local moved = recover_values(deadlines, processing, second, ARGV[1], ready)
    + recover(claims, processing, second, ARGV[1], ready)
return { moved, redis.call('zcount', deadlines, '-inf', second) + redis.call('zcount', claims, '-inf', second) }
