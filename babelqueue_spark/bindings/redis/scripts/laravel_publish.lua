-- KEYS: ready, notify, delayed, and to publish only once: idempotency key
-- ARGV: seconds an idempotency key lives, how many are delayed, (seconds, body) of each of
--       those, then the others
local ready, notify, delayed, key = unpack(KEYS)
local count = tonumber(ARGV[2])

redis.call('llen', ready)
redis.call('llen', notify)
redis.call('zcard', delayed)
if not first_time(key, ARGV[1]) then
    return 0
end

local second = count > 0 and math.floor(now())
for i = 1, count do
    redis.call('zadd', delayed, second + ARGV[2 * i + 1], ARGV[2 * i + 2])
end

local bodies, tokens = {}, {}
for i = 2 * count + 3, #ARGV do
    bodies[#bodies + 1] = ARGV[i]
    tokens[#tokens + 1] = 1
end
send('rpush', ready, bodies)
send('rpush', notify, tokens)
return count + #bodies
