-- KEYS: ready, delayed, processing, deadlines, claims, list of the new claim
-- ARGV: seconds until the claim lapses, its token, messages, max bytes, messages to take however large
--       they are, most lapsed or due messages to move
local ready, delayed, processing, deadlines, claims, list = unpack(KEYS)
local limit, second = ARGV[6], math.floor(now())

-- Reads first: a key of another type fails here, where nothing has been written yet.
redis.call('llen', ready)
redis.call('llen', processing)
redis.call('zcard', delayed)
redis.call('zcard', claims)
open_for_writes(deadlines)

recover_values(deadlines, processing, second, limit, ready)
recover(claims, processing, second, limit, ready)
move_due(delayed, second, limit, all, ready)

local values = peek(ready, 0, tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
if #values > 0 then
    send('rpush', list, values)
    redis.call('zadd', claims, deadline_of(second, ARGV[1]), ARGV[2])
    redis.call('ltrim', ready, #values, -1)
end
return values
