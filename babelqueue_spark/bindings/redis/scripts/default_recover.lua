-- KEYS: ready, processing, deadlines, claims
-- ARGV: most lapsed messages to move, of either kind of claim
-- Returns how many messages went back.
local ready, processing, deadlines, claims = unpack(KEYS)
local second = math.floor(now())

redis.call('llen', ready)
redis.call('llen', processing)
redis.call('zcard', claims)
open_for_writes(deadlines)

return recover_values(deadlines, processing, second, ARGV[1], ready)
    + recover(claims, processing, second, ARGV[1], ready)
