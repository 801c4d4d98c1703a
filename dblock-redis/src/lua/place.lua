-- For tests: writes rows past the rules. ARGV: idle time; then for each key the columns, and those of the successor or
-- '' in the place of its lease.
local place = 2
local function take()
  place = place + 1
  return ARGV[place - 1]
end
local function number()
  return tonumber(take())
end
for _, key in ipairs(KEYS) do
  local row = {
    lease = take(), owner = take(), count = number(), expire_at = number(), token = take(), ceiling = take(),
    wanted_until = number(), acquired_at = number(), revoked = number(), holder = take(),
  }
  local next = {
    lease = take(), owner = take(), holder = take(), ttl = number(), spare = number(), since = number(),
    ['until'] = number(),
  }
  row.next = next.lease ~= '' and next or nil
  write(key, row, tonumber(ARGV[1]))
end
