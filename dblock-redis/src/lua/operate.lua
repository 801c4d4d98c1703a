-- Revokes the lease of a key (ARGV: channel, length of the prefix, idle time, 'revoke'), or frees the key by force (…,
-- 'free', a fresh lease). Answers whether the key was held; 'X' where there is something else.
local row = read(KEYS[1])
if not row then
  return 'X'
end
if not is_held(row) then
  return 0
end
if ARGV[4] == 'revoke' then
  row.revoked = 1
else
  row.count, row.lease, row.next = 0, ARGV[5], nil
end
write(KEYS[1], row, tonumber(ARGV[3]))
if row.count == 0 and row.wanted_until > now then
  tell(ARGV[1], 'r' .. KEYS[1]:sub(tonumber(ARGV[2]) + 1))
end
return 1
