-- KEYS: processing, deadlines
-- ARGV: for each run of messages that one script claimed one after the other: how many, the deadline
--       member of the first, and of the last
-- Acknowledges whole runs, so that their bodies need not travel and the list is rebuilt once. Returns a
-- digit a run: 0 where not all of it was found in its place, and nothing was done.
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

-- Between two members of one claim and one score there are only members of that claim.
local function has_all(rank, count, first, last)
    return rank
        and redis.call('zrank', deadlines, last) == rank + count - 1
        and redis.call('zscore', deadlines, last) == redis.call('zscore', deadlines, first)
end

-- A claim put its elements into the list as one block, which equal elements of others may disturb.
local function in_place(head, rank, count)
    for start = 0, count - 1, SLICE do
        local stop = math.min(start + SLICE, count) - 1
        local values = redis.call('lrange', processing, head + start, head + stop)
        local members = redis.call('zrange', deadlines, rank + start, rank + stop)
        for i, member in ipairs(members) do
            local value = values[i]
            if not value or #member ~= #value + 33 or not string.find(member, value, 34, true) then
                return false
            end
        end
    end
    return true
end

-- Where the block of a run begins: near the head, where the oldest claims stand, or from the tail on.
-- Equal elements may stand before it, or behind it.
local function find(rank, count, first)
    for _, search in ipairs({{'1', 10 * count}, {'-1', 0}}) do
        local head = redis.call('lpos', processing, value_of(first), 'rank', search[1], 'maxlen', search[2])
        if head and not overlaps(head, head + count - 1) and in_place(head, rank, count) then
            return head
        end
    end
end

local function settle(count, first, last)
    local rank = redis.call('zrank', deadlines, first)
    local head = has_all(rank, count, first, last) and find(rank, count, first)
    if not head then
        return '0'
    end
    blocks[#blocks + 1] = {first = head, last = head + count - 1, rank = rank}
    return '1'
end

local hits = {}
for i = 1, #ARGV, 3 do
    hits[#hits + 1] = settle(tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2])
end

table.sort(blocks, function(a, b) return a.rank > b.rank end)
for _, block in ipairs(blocks) do
    redis.call('zremrangebyrank', deadlines, block.rank, block.rank + block.last - block.first)
end

-- The elements from `start` to `stop` that belong to no block.
local function others(start, stop)
    local kept = {}
    local function keep(first, last)
        for at = first, last, SLICE do
            for _, value in ipairs(redis.call('lrange', processing, at, math.min(at + SLICE - 1, last))) do
                kept[#kept + 1] = value
            end
        end
    end
    for _, block in ipairs(blocks) do
        keep(start, block.first - 1)
        start = block.last + 1
    end
    keep(start, stop)
    return kept
end

-- The list is cut off in front of the blocks or behind them, where less has to be put back.
if #blocks > 0 then
    table.sort(blocks, function(a, b) return a.first < b.first end)
    local first, last = blocks[1].first, blocks[#blocks].last
    if last < length - first then
        local kept, reversed = others(0, last), {}
        for i = #kept, 1, -1 do
            reversed[#reversed + 1] = kept[i]
        end
        redis.call('ltrim', processing, last + 1, -1)
        send('lpush', processing, reversed)
    else
        local kept = others(first, length - 1)
        redis.call('ltrim', processing, 0, first - length - 1)
        send('rpush', processing, kept)
    end
end
return table.concat(hits)
