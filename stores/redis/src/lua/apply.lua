-- Carries out one request for each key by the rules of `Store::apply`.
--
-- ARGV: channel, length of the keys' prefix, idle time, and the requests for the keys in one string, packed
-- as rows are. Each begins with its letter and lease (16), and
--   A acquire: owner (16), ttl, wanted_for and waited (8 each; -1 without one), spare tokens (4), length of
--              holder (1), holder
--   E extend:  count (4), ttl (8)
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
  acquired_at, expire_at, revoked, next = now, now + ttl, 0, nil
end

-- Makes the lease the successor, unless another one comes first. Whether there is something to write.
local function queue(asker, by, name, ttl, length, waited, spare)
  local since = now - waited
  if next and next['until'] > now then
    if next.lease == asker then
      if next.owner == by and next['until'] - now >= math.floor(length / 2) then
        return false
      end
      since = math.min(since, next.since)
    elseif next.since < since + @QUEUE_AHEAD@ then
      return false
    end
  end
  next = {
    lease = asker, owner = by, holder = name, ttl = math.min(ttl, @NEXT_TTL@), spare = spare, since = since,
    ['until'] = now + length,
  }
  return true
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
  local answer, changed, passed_on = 'L', false, false
  local by, ttl, wanted_for, waited, spare, name, holds, fresh, to
  if action == 'A' then
    by, ttl, wanted_for, waited, spare, name, at = unpack_bytes('<c16i8i8i8I4Bc0', requests, at)
  elseif action == 'P' then
    to, by, ttl, name, at = unpack_bytes('<c16c16i8Bc0', requests, at)
  elseif action ~= 'R' then
    holds, ttl, at = unpack_bytes('<I4i8', requests, at)
    if action == 'H' then
      fresh, by, name, at = unpack_bytes('c19c16Bc0', requests, at)
    end
  end
  if not read(packed[n]) then
    answer = 'X'
  else
    local held, own, wanted = count > 0 and expire_at > now, lease == asker, wanted_until > now and 1 or 0
    if action == 'R' then
      if own and held then
        fresh = next and next['until'] > now and next_token()
        if fresh then
          owner, holder = next.owner, next.holder
          hold(next.lease, fresh, next.spare, next.ttl)
          answer, changed, passed_on = 'R\1\1', true, true
        else
          answer, count = 'R\1\0', 0
          write_end(key)
          if wanted == 1 then
            tell(channel, 'r' .. key:sub(prefix + 1))
          end
        end
      elseif own and count == 0 then
        answer = 'R\0\0'
      elseif not own and next and next.lease == asker then
        answer = 'W'
        write_end(key)
      end
    elseif action == 'P' then
      if held and lease == to then
        answer = pack('<c1i8Bc19', 'G', expire_at - now, wanted, token)
      elseif own and held and revoked == 0 then
        fresh = next_token()
        if fresh then
          local successor = next
          owner, holder = by, name
          hold(to, fresh, 0, ttl)
          next = successor
          answer, changed = pack('<c1i8Bc19', 'G', expire_at - now, wanted, token), true
        else
          answer = 'U'
        end
      end
    elseif action == 'A' and not own then
      if held then
        -- Spares the write while half of the time is still ahead.
        if wanted_for >= 0 and wanted_until - now < math.floor(wanted_for / 2) then
          wanted_until, changed = now + wanted_for, true
        end
        if wanted_for >= 0 and waited >= 0 and queue(asker, by, name, ttl, wanted_for, waited, spare) then
          changed = true
        end
        answer = pack('<c16i8c19Bc0', owner, expire_at - now, token, #holder, holder)
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
          hold(asker, fresh, spare, ttl)
          answer, changed = pack('<c1i8Bc19', former and 'T' or 'G', expire_at - now, wanted, token), true
          if former then
            answer = answer .. former
          end
        else
          answer = 'U'
        end
      end
    elseif action == 'A' then
      if held then
        changed, count = count ~= 1, 1
        answer = pack('<c1i8Bc19', 'G', expire_at - now, wanted, token)
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
      answer, changed = pack('<c1i8BB', 'E', expire_at - now, revoked, wanted), true
    end
  end
  if changed then
    write(key, idle)
  end
  -- After the write: a server that refuses it, without enough replicas or memory, would still tell.
  if passed_on then
    tell(channel, 'p' .. lease .. token .. key:sub(prefix + 1))
  end
  answers[n] = answer
end
return table.concat(answers)
