-- KEYS: processing, deadlines
-- ARGV: for each run of messages that one script claimed one after the other: how many, the deadline
--       member of the first, and of the last
-- Acknowledges whole runs without their bodies having to travel. Returns a digit a run: 0 where that
-- cannot be proved to be safe, and nothing was done.
local processing, deadlines = unpack(KEYS)
local length = redis.call('llen', processing)
local blocks = {}

local function overlaps(first, last)
    for _, block in ipairs(blocks) do
        if first <= block.last and last >= block.first then
            return true
        end
    end
    return false
end

-- Between two members of one score and one claim there are only members of that claim, so their ranks
-- tell whether all are there; and a claim puts its elements into the list as one block.
local function settle(count, first, last)
    local from, to = redis.call('zrank', deadlines, first), redis.call('zrank', deadlines, last)
    if not from or not to or to - from + 1 ~= count then
        return '0'
    end
    if redis.call('zscore', deadlines, first) ~= redis.call('zscore', deadlines, last) then
        return '0'
    end
    local head = redis.call('lpos', processing, value_of(first), 'rank', -1)
    if not head or redis.call('lindex', processing, head + count - 1) ~= value_of(last) then
        return '0'
    end
    if overlaps(head, head + count - 1) then
        return '0'
    end
    redis.call('zremrangebyrank', deadlines, from, to)
    blocks[#blocks + 1] = {first = head, last = head + count - 1}
    return '1'
end

local hits = {}
for i = 1, #ARGV, 3 do
    hits[#hits + 1] = settle(tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2])
end

if #blocks > 0 then
    table.sort(blocks, function(a, b) return a.first < b.first end)
    local kept = {}
    for i, block in ipairs(blocks) do
        local stop = blocks[i + 1] and blocks[i + 1].first - 1 or length - 1
        for start = block.last + 1, stop, SLICE do
            for _, value in ipairs(redis.call('lrange', processing, start, math.min(start + SLICE - 1, stop))) do
                kept[#kept + 1] = value
            end
        end
    end
    redis.call('ltrim', processing, 0, blocks[1].first - length - 1)
    send('rpush', processing, kept)
end
return table.concat(hits)
