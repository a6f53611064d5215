-- Claims and settlements of several callers, one after the other, each as if it were alone:
-- claim and settle are the scripts of these names. KEYS five of each. ARGV the number of
-- bytes of results after which to end, then of each its name and what it takes. Returns of
-- each what it returns alone, or as a string what went wrong; '' if it was not begun.
local all, at, size = {}, 2, 0
for i = 1, #KEYS / 5 do
	local run, takes = settle, 8
	if ARGV[at] == 'claim' then run, takes = claim, 7 end
	if size > tonumber(ARGV[1]) then
		all[i] = ''
	else
		local ran, reply = pcall(run, {unpack(KEYS, 5 * i - 4, 5 * i)}, {unpack(ARGV, at + 1, at + takes)})
		local failed = type(reply) == 'table' and reply.err or not ran and tostring(reply) -- which Redis 7.0 has as a string
		if failed and not failed:find('^%u') then failed = 'ERR ' .. failed end -- it is Lua's
		all[i] = failed or reply
		if not failed and type(reply) == 'table' and reply[3] then size = size + #reply[3] end
	end
	at = at + 1 + takes
end
return all
