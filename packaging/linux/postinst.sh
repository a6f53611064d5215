#!/bin/sh
# Debian: configure [OLD-VERSION]. RPM: 1 after an installation, 2 after an upgrade.
set -e
case "$1" in
configure | 1 | 2) ;;
*) exit 0 ;;
esac
if ! getent group stet >/dev/null; then groupadd --system stet; fi
if ! getent passwd stet >/dev/null; then
	useradd --system --gid stet --home-dir /var/lib/stet --no-create-home --shell /usr/sbin/nologin stet
fi
install -d -o stet -g stet -m 0750 /var/lib/stet
# The configuration can have secrets. The operator may have removed it.
chown root:stet /etc/stet
chmod 0750 /etc/stet
if [ -e /etc/stet/stet.yaml ]; then
	chown root:stet /etc/stet/stet.yaml
	chmod 0640 /etc/stet/stet.yaml
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart stet.service
fi
