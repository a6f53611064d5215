#!/bin/sh
# Debian: remove, upgrade. RPM: 0 before a removal, 1 before an upgrade.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then systemctl disable --now stet.service; fi
	;;
esac
