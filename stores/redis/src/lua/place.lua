-- For tests: writes rows past the rules. ARGV: idle time; then for each key the columns, and those of the
-- successor or '' in the place of its lease.
local place = 2
local function take()
  place = place + 1
  return ARGV[place - 1]
end
local function number()
  return tonumber(take())
end
for _, key in ipairs(KEYS) do
  lease, owner, count, expire_at, token, ceiling = take(), take(), number(), number(), take(), take()
  wanted_until, acquired_at, revoked, holder = number(), number(), number(), take()
  next = {
    lease = take(), owner = take(), holder = take(), ttl = number(), spare = number(), since = number(),
    ['until'] = number(),
  }
  next = next.lease ~= '' and next or nil
  write(key, tonumber(ARGV[1]))
end
