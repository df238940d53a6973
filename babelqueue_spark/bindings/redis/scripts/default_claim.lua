-- KEYS: ready, delayed, processing, deadlines, claims, list of the new claim
-- ARGV: seconds until the claim lapses, its token, messages, max bytes, messages to take however large
--       they are, most lapsed or due messages to move
-- Returns how many messages are in the list then. Where they are likely to be far below the bytes, they are
-- copied without being read: most of the time goes into making values of Lua. A user who may not use the two
-- commands for it reads them.
local ready, delayed, processing, deadlines, claims, list = unpack(KEYS)
local count, max_bytes, least = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
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

-- By the mean over as many nodes of the list, which hold at least as many messages.
local function likely_fit()
    local bytes = redis.pcall('memory', 'usage', ready, 'samples', count)
    return type(bytes) == 'number' and 4 * count * bytes / redis.call('llen', ready) < max_bytes
end

-- The head of the list may be larger than its mean.
local function fits()
    local bytes = redis.pcall('memory', 'usage', list, 'samples', 0)
    return type(bytes) == 'number' and bytes <= max_bytes
end

local copied = count > 0 and likely_fit()
    and redis.pcall('sort', ready, 'by', 'nosort', 'limit', 0, count, 'store', list)
if type(copied) == 'number' and copied > 0 and not fits() then
    redis.call('unlink', list)
    copied = nil
end
if type(copied) ~= 'number' then
    local values = peek(ready, 0, count, max_bytes, least)
    send('rpush', list, values)
    copied = #values
end
if copied > 0 then
    redis.call('zadd', claims, deadline_of(second, ARGV[1]), ARGV[2])
    redis.call('ltrim', ready, copied, -1)
end
return copied
