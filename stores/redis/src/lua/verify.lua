-- Whether the lock of a row is held with this token. `token` is a number in decimal digits, as text.
local function dblock_holds(row_key, token)
  local row, time = redis.call('GET', row_key), redis.call('TIME')
  if not row then
    return false
  end
  local layout, count, has_next, _, _, _, expire_at, _, _, last, _, _, at =
    struct.unpack('<BI4BBc16c16i8i8i8c19c19Bc0', row)
  local holds = 0
  if layout == 2 then
    at = has_next == 1 and select(8, struct.unpack('<c16c16i8i8i8I4Bc0', row, at)) or at
    holds = select(2, struct.unpack('<I4I4', row, at))
  end
  -- All who share a lock have its token, also one whose own hold is over.
  return layout <= 2 and holds == 0 and count > 0 and expire_at > time[1] * 1000000 + time[2] and last == ('0'):rep(19 - #token) .. token
end
