-- KEYS: ready, delayed, and to publish only once: idempotency key
-- ARGV: seconds an idempotency key lives, a word unique to this call, how many are delayed, (seconds,
--       value) of each of those, then the others
local ready, delayed, key = unpack(KEYS)
local word, count = ARGV[2], tonumber(ARGV[3])

redis.call('llen', ready)
redis.call('zcard', delayed)
if not first_time(key, ARGV[1]) then
    return 0
end

-- A set holds a value once: a further copy of it goes into a frame that says which copy it is.
local FRAME = '{"__bq_frame":1,'
local function distinct(value, i)
    local copy = FRAME .. '"copy":"' .. word .. '-' .. i .. '",'
    if string.sub(value, 1, #FRAME) == FRAME then
        return copy .. string.sub(value, #FRAME + 1)
    end
    return copy .. '"headers":{},"body":' .. cjson.encode(value) .. '}'
end

local second = count > 0 and math.floor(now())
for i = 1, count do
    local score, value = second + ARGV[2 * i + 2], ARGV[2 * i + 3]
    if redis.call('zadd', delayed, 'nx', score, value) == 0 then
        redis.call('zadd', delayed, score, distinct(value, i))
    end
end

local values = {}
for i = 2 * count + 4, #ARGV do
    values[#values + 1] = ARGV[i]
end
send('rpush', ready, values)
return count + #values
