-- KEYS: ready, processing, deadlines, delayed
-- ARGV: seconds until the claim lapses, token prefix, messages, max bytes, messages to take however large
--       they are, most lapsed or due messages to move
local ready, processing, deadlines, delayed = unpack(KEYS)
local token, limit, second = ARGV[2], ARGV[6], math.floor(now())
local deadline = deadline_of(second, ARGV[1])

-- Reads first: a key of another type fails here, where nothing has been written yet.
redis.call('llen', ready)
redis.call('llen', processing)
redis.call('zcard', delayed)
open_for_writes(deadlines)

move_due(deadlines, second, limit, function(members)
    local values = {}
    for _, member in ipairs(members) do
        if #member >= 33 and string.byte(member, 33) == 58 then
            values[#values + 1] = value_of(member)
        end
    end
    return remove(processing, values)
end, ready)
move_due(delayed, second, limit, all, ready)

local values = peek(ready, 0, tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
local claims = {}
for i, value in ipairs(values) do
    claims[2 * i - 1] = deadline
    claims[2 * i] = token .. string.format('%016x', i) .. ':' .. value
end
send('rpush', processing, values)
send('zadd', deadlines, claims)
redis.call('ltrim', ready, #values, -1)
return values
