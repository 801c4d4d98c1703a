-- Revokes the lease of a key (ARGV: channel, length of the prefix, idle time, 'revoke'), or frees the key by
-- force (…, 'free', a fresh lease). Answers whether the key was held; 'X' where there is something else.
if not read(get(KEYS[1])) then
  return 'X'
end
if count == 0 or expire_at <= now then
  return 0
end
if ARGV[4] == 'revoke' then
  revoked = 1
else
  count, lease, next, shared = 0, ARGV[5], nil, NONE
end
write(KEYS[1], tonumber(ARGV[3]))
if count == 0 and wanted_until > now then
  tell(ARGV[1], 'r' .. KEYS[1]:sub(ARGV[2] + 1))
end
return 1
