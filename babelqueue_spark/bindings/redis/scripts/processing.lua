-- The `:processing` list of other clients. A deadline member is
-- `<32 characters>:<value>`.

local function value_of(member)
    return string.sub(member, 34)
end

-- Removes one copy for each of `values` from a list, newest first, in one pass over its tail and
-- without disturbing the order of the rest. Returns the values of which a copy was there.
--
-- LREM a value would cost the length of the list each time as soon as claims of several readers, or
-- entries a dead consumer left at the head, stand between.
local function remove(list, values)
    local wanted = {}
    for _, value in ipairs(values) do
        wanted[value] = (wanted[value] or 0) + 1
    end

    local position, deepest, missing, matched = 0, 0, #values, {}
    while missing > 0 do
        local size = math.min(#values + position, SLICE)
        local slice = redis.call('lrange', list, -position - size, -position - 1)
        for i = #slice, 1, -1 do
            position = position + 1
            local copies = wanted[slice[i]]
            if copies and copies > 0 then
                wanted[slice[i]] = copies - 1
                missing = missing - 1
                matched[position] = true
                deepest = position
            end
        end
        if #slice < size then
            break
        end
    end

    local kept = {}
    if deepest > #values - missing then
        for first = deepest, 1, -SLICE do
            local slice = redis.call('lrange', list, -first, -math.max(first - SLICE + 1, 1))
            for i, value in ipairs(slice) do
                if not matched[first - i + 1] then
                    kept[#kept + 1] = value
                end
            end
        end
    end
    if deepest > 0 then
        redis.call('ltrim', list, 0, -deepest - 1)
        send('rpush', list, kept)
    end

    if missing == 0 then
        return values
    end
    local removed = {}
    for _, value in ipairs(values) do
        if wanted[value] > 0 then
            wanted[value] = wanted[value] - 1
        else
            removed[#removed + 1] = value
        end
    end
    return removed
end

-- Moves the messages of lapsed claims to the tail of `ready`; returns how many.
local function recover_values(deadlines, processing, second, limit, ready)
    return #move_due(deadlines, second, limit, function(members)
        local values = {}
        for _, member in ipairs(members) do
            if #member >= 33 and string.byte(member, 33) == 58 then
                values[#values + 1] = value_of(member)
            end
        end
        return remove(processing, values)
    end, ready)
end
