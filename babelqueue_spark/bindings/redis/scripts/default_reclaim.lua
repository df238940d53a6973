-- KEYS: ready, processing, deadlines, seen, pause
-- ARGV: seconds an entry may lie, seconds between two looks
-- Gives back what has lain in processing without a deadline. `seen` is ours: each such value, and when
-- it was first met. Of equal values one is given back a look.
local ready, processing, deadlines, seen, pause = unpack(KEYS)
local moment, seconds = now(), tonumber(ARGV[1])

redis.call('llen', ready)
redis.call('zcard', seen)
if not first_time(pause, ARGV[2]) then
    return 0
end

local function each(command, key, visit)
    local first, slice = 0, nil
    repeat
        slice = redis.call(command, key, first, first + SLICE - 1)
        for _, value in ipairs(slice) do
            visit(value)
        end
        first = first + SLICE
    until #slice < SLICE
end

local stranded = {}
each('lrange', processing, function(value)
    stranded[value] = (stranded[value] or 0) + 1
end)
each('zrange', deadlines, function(member)
    local value = value_of(member)
    if stranded[value] then
        stranded[value] = stranded[value] > 1 and stranded[value] - 1 or nil
    end
end)

local gone = {}
each('zrange', seen, function(value)
    if not stranded[value] then
        gone[#gone + 1] = value
    end
end)
send('zrem', seen, gone)
for value in pairs(stranded) do
    redis.call('zadd', seen, 'nx', moment, value)
end

local idle = redis.call('zrangebyscore', seen, '-inf', moment - seconds)
local back = remove(processing, idle)
send('rpush', ready, back)
send('zrem', seen, idle)
return #back
