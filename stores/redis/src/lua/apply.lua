-- Carries out one request for each key by the rules of `Store::apply`.
--
-- ARGV: channel, length of the keys' prefix, idle time, and the requests for the keys in one string, packed
-- as rows are. Each begins with its letter and lease (16), and
--   A acquire: owner (16), ttl, wanted_for and waited (8 each; -1 without one), spare tokens and limit (4 each; 0
--              for the lock alone), length of holder (1), holder
--   E extend:  count (4), ttl (8)
--   S the same of a shared hold: also its number (8), how many want to enter, and their limit (4 each), for how long
--              they have waited, and for how long the lock is wanted (8 each)
--   H extend after a local hand-over: the same, token (19), owner (16), length of holder (1), holder
--   R release: nothing
--   P pass-on: the lease that gets the row and its owner (16 each), ttl (8), length of holder (1), holder
-- Answers: one string, with a letter and what follows it for each key.

local LARGEST = '9223372036854775807'
local channel, prefix, idle = ARGV[1], ARGV[2], tonumber(ARGV[3])

local function as_token(number)
  return ('%019.0f'):format(number)
end

-- The token `more` above, or the largest there is. `more` is below 2^32.
local function above(from, more)
  local low = tonumber(from:sub(11)) + more
  local high = tonumber(from:sub(1, 10)) + math.floor(low / 1e9)
  local sum = ('%010.0f%09.0f'):format(high, low % 1e9)
  return sum > LARGEST and LARGEST or sum
end

-- How far the second token is above the first: below 2^32.
local function distance(from, to)
  local high = tonumber(to:sub(1, 10)) - tonumber(from:sub(1, 10))
  return high * 1e9 + tonumber(to:sub(11)) - tonumber(from:sub(11))
end

local clock
-- The last token and spare tokens, and the ceiling of a lease with these.
local ceiling_of, ceiling_spare, ceiling_then
-- The token of the next lease, or nil when they are used up.
local function next_token()
  clock = clock or as_token(now)
  if ceiling < clock then
    return clock
  elseif ceiling ~= LARGEST then
    return above(ceiling, 1)
  end
end

local function hold(to, fresh, spare, ttl)
  if fresh ~= ceiling_of or spare ~= ceiling_spare then
    ceiling_of, ceiling_spare, ceiling_then = fresh, spare, spare > 0 and above(fresh, spare) or fresh
  end
  lease, count, token, ceiling = to, 1, fresh, ceiling_then
  acquired_at, expire_at, revoked, next, shared = now, now + ttl, 0, nil, NONE
end

-- Says that somebody waits, and spares the write while half of the time is still ahead. Whether there is one.
local function want(length)
  if math.max(wanted_until - now, 0) < math.floor(length / 2) then
    wanted_until = now + length
    return true
  end
  return false
end

-- Makes the lease the successor, unless another one comes first. Whether there is something to write.
local function queue(asker, by, name, ttl, length, waited, spare, limit)
  local since = now - waited
  if next and next['until'] > now then
    if next.lease == asker then
      if next.owner == by and next.limit == limit and next['until'] - now >= math.floor(length / 2) then
        return false
      end
      since = math.min(since, next.since)
    elseif next.since < since + @QUEUE_AHEAD@ then
      return false
    end
  end
  next = {
    lease = asker, owner = by, holder = name, ttl = math.min(ttl, @NEXT_TTL@), spare = spare, since = since,
    ['until'] = now + length, limit = limit,
  }
  return true
end

-- The rules of shared holds, as `rules::shared` has them.
local LARGEST_COUNT = 4294967295

-- The lease that the row names while the lock is shared, and that no request names.
local function phase_of(first)
  return string.char((first:byte() + 128) % 256) .. first:sub(2)
end

-- Begins a phase with the hold of this lease, if the row names it. Whether it does.
local function begins(asker)
  if lease ~= asker then
    return false
  end
  shared = { { lease = asker, holder = holder, count = 1, number = 0, ['until'] = expire_at } }
  lease, count = phase_of(asker), 1
  return true
end

local function hold_of(asker)
  for _, hold in ipairs(shared) do
    if hold.lease == asker and hold['until'] > now then
      return hold
    end
  end
end

-- How many are inside, when the first and the last of their holds end, and the holds: without what has expired, and
-- without the hold of `gone`.
local function live_without(gone)
  local live, sum, first, last = {}, 0, math.huge, 0
  for _, hold in ipairs(shared) do
    if hold['until'] > now and hold.lease ~= gone then
      live[#live + 1] = hold
      sum = sum + hold.count
      first, last = math.min(first, hold['until']), math.max(last, hold['until'])
    end
  end
  return math.min(sum, LARGEST_COUNT), first, last, live
end

-- Brings the columns that all programs read up to date. There is a live hold.
local function sum_up(gone)
  local inside, _, last, live = live_without(gone)
  shared, count, expire_at, holder = live, inside, last, live[1].holder
end

-- Nobody who waits came earlier, and no operator has revoked the lock.
local function comes_next(asker, waited)
  local before = next and next['until'] > now and next.lease ~= asker and next.since <= now - waited
  return revoked == 0 and not before
end

local function granted(until_then, wanted)
  return pack('<c1i8Bc19', 'G', until_then - now, wanted, token)
end

-- `room_in`: 0 for none.
local function extended(until_then, wanted, counted, room_in)
  return pack('<c1i8BBI4i8', 'E', until_then - now, revoked, wanted, counted, room_in)
end

-- `unpack` takes so many. Beyond that, each is read by itself.
local packed = #KEYS <= 4000 and redis.call('MGET', unpack(KEYS)) or {}
-- MGET is silent about what is no string. Before the first write, so that an error leaves nothing half done.
for n, key in ipairs(KEYS) do
  packed[n] = packed[n] or get(key)
end
local requests, at = ARGV[4], 1
local answers = {}
for n, key in ipairs(KEYS) do
  local action, asker
  action, asker, at = unpack_bytes('c1c16', requests, at)
  local answer, changed, passed_on, freed = 'L', false, false, false
  local by, ttl, wanted_for, waited, spare, limit, name, holds, fresh, to, number, enter, named, before, waits
  if action == 'A' then
    by, ttl, wanted_for, waited, spare, limit, name, at = unpack_bytes('<c16i8i8i8I4I4Bc0', requests, at)
  elseif action == 'P' then
    to, by, ttl, name, at = unpack_bytes('<c16c16i8Bc0', requests, at)
  elseif action ~= 'R' then
    holds, ttl, at = unpack_bytes('<I4i8', requests, at)
    if action == 'H' then
      fresh, by, name, at = unpack_bytes('c19c16Bc0', requests, at)
    elseif action == 'S' then
      number, enter, limit, waited, wanted_for, at = unpack_bytes('<i8I4I4i8i8', requests, at)
    end
  end
  if not read(packed[n]) then
    answer = 'X'
  else
    local held, own, wanted = count > 0 and expire_at > now, lease == asker, wanted_until > now and 1 or 0
    named, before, waits = lease, count, next
    local mine
    if held and (action == 'S' or action == 'A' and limit > 0) then
      changed = begins(asker)
    end
    if held and (action == 'S' or action == 'R' or action == 'A' and limit > 0) then
      mine = hold_of(asker)
    end
    if action == 'R' then
      if mine and live_without(asker) > 0 then
        sum_up(asker)
        answer, changed, freed = 'R\1\0', true, true
      elseif held and (own or mine) then
        shared = NONE
        fresh = next and next['until'] > now and next_token()
        if fresh then
          owner, holder = next.owner, next.holder
          hold(next.lease, fresh, next.spare, next.ttl)
          answer, changed, passed_on = 'R\1\1', true, true
        else
          answer, count, next = 'R\1\0', 0, nil
          write_end(key, idle)
          if wanted == 1 then
            tell(channel, 'r' .. key:sub(prefix + 1))
          end
        end
      elseif own and count == 0 then
        answer = 'R\0\0'
      elseif not own and next and next.lease == asker then
        answer, next = 'W', nil
        write_end(key, idle)
      end
    elseif action == 'P' then
      if held and lease == to then
        answer = granted(expire_at, wanted)
      elseif own and held and revoked == 0 then
        fresh = next_token()
        if fresh then
          local successor = next
          owner, holder = by, name
          hold(to, fresh, 0, ttl)
          next = successor
          answer, changed = granted(expire_at, wanted), true
        else
          answer = 'U'
        end
      end
    elseif mine then
      if action == 'A' then
        answer = granted(mine['until'], wanted)
      elseif mine.number > 0 and number <= mine.number then
        answer = extended(mine['until'], wanted, mine.count, 0)
      else
        local others, first = live_without(asker)
        local chains, room_in = math.max(holds, 1), 0
        mine.number, mine.count = number, chains
        if enter > 0 and comes_next(asker, waited) then
          mine.count = math.min(chains + math.min(enter, math.max(limit - others - chains, 0)), LARGEST_COUNT)
        end
        if revoked == 0 then
          mine['until'] = math.max(mine['until'], now + ttl)
        end
        if enter > 0 and others > 0 and mine.count < chains + enter then
          want(wanted_for)
          room_in = first - now
        end
        answer, changed = extended(mine['until'], wanted, mine.count, room_in), true
        sum_up()
      end
    elseif action == 'S' then
      changed = false
    elseif action == 'A' and limit > 0 and lease == phase_of(asker) then
      answer = 'L'
    elseif action == 'A' and not own then
      local inside, first
      if held and limit > 0 and #shared > 0 then
        inside, first = live_without()
      end
      if inside and inside < limit and comes_next(asker, math.max(waited, 0)) then
        if next and next.lease == asker then
          next = nil
        end
        shared[#shared + 1] = { lease = asker, holder = name, count = 1, number = 0, ['until'] = now + ttl }
        sum_up()
        answer, changed = granted(now + ttl, wanted), true
      elseif held then
        changed = wanted_for >= 0 and want(wanted_for)
        if wanted_for >= 0 and waited >= 0 and queue(asker, by, name, ttl, wanted_for, waited, spare, limit) then
          changed = true
        end
        answer = pack('<c16i8c19Bc0', owner, (first or expire_at) - now, token, #holder, holder)
        if next and next['until'] > now and next.lease == asker then
          answer = 'Q' .. answer .. pack('<i8', next.ttl)
        else
          answer = 'B' .. answer
        end
      else
        fresh = next_token()
        if fresh then
          local former = count > 0 and pack('<c16i8c19Bc0', owner, 0, token, #holder, holder)
          owner, holder = by, name
          hold(asker, fresh, limit > 0 and 0 or spare, ttl)
          answer, changed = granted(expire_at, wanted), true
          if former then
            answer = 'T' .. answer:sub(2) .. former
          end
          if limit > 0 then
            begins(asker)
          end
        else
          answer = 'U'
        end
      end
    elseif action == 'A' then
      if held then
        changed, count = count ~= 1, 1
        answer = granted(expire_at, wanted)
      end
    elseif own and held then
      if fresh and fresh >= token then
        if fresh > ceiling then
          ceiling = above(fresh, distance(token, ceiling))
        end
        owner, holder, token = by, name, fresh
      end
      if revoked == 0 then
        expire_at = math.max(holds > 0 and expire_at or 0, now + ttl)
      end
      count = math.max(holds, 1)
      answer, changed = extended(expire_at, wanted, count, 0), true
    end
  end
  if #shared > 0 and count > 0 and expire_at > now and answer:find('^[EGTW]') then
    -- There is room, or nobody any more who came before others.
    freed = named == asker or waits and not next or answer:byte() == 69 and count < before
  end
  if changed then
    write(key, idle)
  end
  -- After the write: a server that refuses it, without enough replicas or memory, would still tell.
  if passed_on then
    tell(channel, 'p' .. lease .. token .. key:sub(prefix + 1))
  elseif freed and wanted_until > now then
    local first, since = NOBODY, now
    if next and next['until'] > now then
      first, since = next.lease, next.since
    end
    local inside = live_without()
    tell(channel, pack('<c1I4c16i8', 's', inside, first, math.max(now - since, 0)) .. key:sub(prefix + 1))
  end
  answers[n] = answer
end
return table.concat(answers)
