#!/bin/sh
# Debian: remove, purge, upgrade. RPM has no purge: it leaves the user and its data.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
	rm -rf /var/lib/stet /etc/stet
	if getent passwd stet >/dev/null; then userdel stet; fi
	if getent group stet >/dev/null; then groupdel stet; fi
fi
