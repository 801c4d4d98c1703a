-- Carries out one request for each key by the rules of `Store::apply`.
--
-- ARGV: channel, length of the keys' prefix, idle time; then for each key its action and lease, and
--   A acquire: owner, holder, ttl, wanted_for or '', waited or '', spare tokens
--   E extend:  count, ttl, owner, holder and token after a local hand-over, or '' three times
--   R release: nothing
-- Answers: one array for each key.

local channel, prefix, idle = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- As a column: what is left of a lease, and never less than nothing.
local function left(row)
  return math.max(row.expire_at - now, 0)
end

local function flag(value)
  return value and 1 or 0
end

local function is_wanted(row)
  return flag(row.wanted_until > now)
end

-- nil when the tokens are used up.
local function next_token(row)
  if row.ceiling ~= LARGEST then
    local token, clock = above(row.ceiling, 1), as_token(now)
    return token > clock and token or clock
  end
end

local function hold(row, lease, token, spare, ttl)
  row.lease, row.count, row.token, row.ceiling = lease, 1, token, above(token, spare)
  row.acquired_at, row.expire_at, row.revoked, row.next = now, now + ttl, 0, nil
end

local function granted(row)
  return { 'G', row.token, left(row), is_wanted(row) }
end

local function is_live(next)
  return next and next['until'] > now
end

local function busy(row, lease)
  local answer = { 'B', row.owner, row.holder, row.token, left(row) }
  if is_live(row.next) and row.next.lease == lease then
    answer[1], answer[6] = 'Q', row.next.ttl
  end
  return answer
end

-- Spares the write while half of the time is still ahead.
local function want(row, length)
  if not length or row.wanted_until - now >= math.floor(length / 2) then
    return false
  end
  row.wanted_until = now + length
  return true
end

-- Makes the lease the successor, unless another one comes first.
local function queue(row, lease, ask)
  if not (ask.waited and ask.wanted_for) then
    return false
  end
  local since, next = now - ask.waited, row.next
  if is_live(next) then
    if next.lease == lease then
      if next.owner == ask.owner and next['until'] - now >= math.floor(ask.wanted_for / 2) then
        return false
      end
      since = math.min(since, next.since)
    elseif next.since < since + @QUEUE_AHEAD@ then
      return false
    end
  end
  row.next = {
    lease = lease, owner = ask.owner, holder = ask.holder, ttl = math.min(ask.ttl, @NEXT_TTL@), spare = ask.spare,
    since = since, ['until'] = now + ask.wanted_for,
  }
  return true
end

local function acquire(row, lease, ask)
  if row.lease == lease then
    if not is_held(row) then
      return { 'L' }, false
    end
    local changed = row.count ~= 1
    row.count = 1
    return granted(row), changed
  end
  if is_held(row) then
    local wanted = want(row, ask.wanted_for)
    local queued = queue(row, lease, ask)
    return busy(row, lease), wanted or queued
  end
  local token = next_token(row)
  if not token then
    return { 'U' }, false
  end
  local former = row.count > 0 and { row.owner, row.holder, row.token }
  row.owner, row.holder = ask.owner, ask.holder
  hold(row, lease, token, ask.spare, ask.ttl)
  local answer = granted(row)
  if former then
    answer[5], answer[6], answer[7] = former[1], former[2], former[3]
  end
  return answer, true
end

local function extend(row, lease, ask)
  if row.lease ~= lease or not is_held(row) then
    return { 'L' }, false
  end
  if ask.token ~= '' and ask.token >= row.token then
    if ask.token > row.ceiling then
      row.ceiling = above(ask.token, distance(row.token, row.ceiling))
    end
    row.owner, row.holder, row.token = ask.owner, ask.holder, ask.token
  end
  if row.revoked == 0 then
    row.expire_at = math.max(row.expire_at, now + ask.ttl)
  end
  row.count = ask.count
  return { 'E', left(row), row.revoked, is_wanted(row) }, true
end

local function release(row, lease, key)
  if row.lease ~= lease then
    if row.next and row.next.lease == lease then
      row.next = nil
      return { 'W' }, true
    end
    return { 'L' }, false
  end
  if not is_held(row) then
    return row.count > 0 and { 'L' } or { 'R', 0, 0 }, false
  end
  local next = row.next
  local token = is_live(next) and next_token(row)
  if token then
    row.owner, row.holder = next.owner, next.holder
    hold(row, next.lease, token, next.spare, next.ttl)
    return { 'R', 1, 1 }, true, 'p' .. next.lease .. token .. key
  end
  row.count, row.next = 0, nil
  return { 'R', 1, 0 }, true, row.wanted_until > now and 'r' .. key
end

local place = 4
-- The next argument.
local function take()
  place = place + 1
  return ARGV[place - 1]
end

local answers = {}
for n, key in ipairs(KEYS) do
  local row, answer = read(key)
  local changed, message
  local action, lease = take(), take()
  if action == 'A' then
    local ask = { owner = take(), holder = take(), ttl = tonumber(take()) }
    ask.wanted_for, ask.waited, ask.spare = tonumber(take()), tonumber(take()), tonumber(take())
    if row then
      answer, changed = acquire(row, lease, ask)
    end
  elseif action == 'E' then
    local ask = { count = tonumber(take()), ttl = tonumber(take()), owner = take(), holder = take(), token = take() }
    if row then
      answer, changed = extend(row, lease, ask)
    end
  elseif row then
    answer, changed, message = release(row, lease, key:sub(prefix + 1))
  end
  if changed then
    write(key, row, idle)
  end
  if message then
    tell(channel, message)
  end
  answers[n] = answer
end
return answers
