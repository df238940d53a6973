-- KEYS: processing, claims, and to give the messages back: ready
-- ARGV: for each run of messages that one script claimed one after the other: the token of their claim, the
--       index of the first from the tail of its list, and that of the last
-- Returns for each run '1' where all of it was ours to settle, else a digit a message.
local processing, claims, ready = unpack(KEYS)

if ready then
    redis.call('llen', ready)
end
open_for_writes(claims)

local token, list, length -- the claim whose runs are being settled
local settled, marks -- of its messages, by index: those that are settled, and the new ones of them
local back = {}

local function open(name)
    token, list, settled, marks = name, list_of(processing, name), {}, {}
    length = redis.call('llen', list)
    for _, position in ipairs(redis.call('lpos', list, token, 'count', 0)) do
        settled[length - position] = true
    end
end

local function close()
    while settled[length] do
        length = length - 1
    end
    if length == 0 then
        redis.call('unlink', list)
        redis.call('zrem', claims, token)
        return
    end
    redis.call('ltrim', list, -length, -1)
    for _, index in ipairs(marks) do
        if index < length then
            redis.call('lset', list, -index, token)
        end
    end
end

local function keep_for_release(first, last)
    for i, value in ipairs(redis.call('lrange', list, -first, -last)) do
        if not settled[first + 1 - i] then
            back[#back + 1] = value
        end
    end
end

local function settle(first, last)
    if ready and length >= last then
        keep_for_release(math.min(first, length), last)
    end
    if first == length and last == 1 and not next(settled) then
        length = 0
        return '1'
    end
    local digits = {}
    for index = first, last, -1 do
        local ours = index <= length and not settled[index]
        if ours then
            settled[index] = true
            marks[#marks + 1] = index
        end
        digits[#digits + 1] = ours and '1' or '0'
    end
    return table.concat(digits)
end

local hits = {}
for i = 1, #ARGV, 3 do
    if ARGV[i] ~= token then
        if token then
            close()
        end
        open(ARGV[i])
    end
    hits[#hits + 1] = settle(tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
end
close()

if ready then
    give_back(ready, back)
end
return hits
