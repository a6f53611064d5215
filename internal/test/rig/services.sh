#!/bin/sh
# Installs the servers that the tests start (PostgreSQL, PgBouncer, MariaDB, Redis and
# Sentinel, RabbitMQ, NATS, ZooKeeper, Prometheus), Python with what its package and examples need,
# and Node and Chromium for clients/js, with apt-get. jars.sh then downloads Kafka and ElasticMQ.
# It does nothing where they are there already, and never starts or enables a
# service of the machine: tests run servers of their own.
set -eu

# has PROGRAM: it is in PATH, or where Debian puts servers.
has() {
	for f in /usr/lib/postgresql/*/bin/"$1" /usr/sbin/"$1" /usr/local/sbin/"$1"; do
		if [ -x "$f" ]; then return 0; fi
	done
	command -v "$1" >/dev/null 2>&1
}

missing=
if ! has postgres || ! has initdb; then missing="$missing postgresql"; fi
if ! has pgbouncer; then missing="$missing pgbouncer"; fi
if ! has mariadbd || ! has mariadb-install-db; then missing="$missing mariadb-server"; fi
if ! has rabbitmq-server; then missing="$missing rabbitmq-server"; fi
if ! has nats-server; then missing="$missing nats-server"; fi
if ! has redis-server || ! has redis-benchmark; then missing="$missing redis-server redis-tools"; fi
if ! has redis-sentinel; then missing="$missing redis-sentinel"; fi
if ! has prometheus || ! has promtool; then missing="$missing prometheus"; fi
if [ ! -e /usr/share/java/zookeeper.jar ]; then missing="$missing zookeeper"; fi
if ! has java; then missing="$missing default-jre-headless"; fi
if ! has mvn; then missing="$missing maven"; fi
if ! has nginx; then missing="$missing nginx-light"; fi
if ! has python3; then missing="$missing python3"; fi
if ! python3 -c "import ensurepip" >/dev/null 2>&1; then missing="$missing python3-venv"; fi
for module in asyncpg fastapi flask greenlet psycopg psycopg2 sqlalchemy uvicorn; do
	if ! /usr/bin/python3 -c "import $module" >/dev/null 2>&1; then missing="$missing python3-$module"; fi
done
if ! has node || ! has npm; then missing="$missing nodejs npm"; fi
if ! has chromium; then missing="$missing chromium"; fi

# new_enough: node is 20 or newer. That of Debian 12 is not; npm has one.
new_enough() {
	major() { node --version | sed 's/^v//; s/[.].*//'; }
	if [ "$(major)" -ge 20 ]; then return 0; fi
	echo "make services: node is $(node --version); installing node@20 from npm in /usr/local"
	npm install --global --prefix /usr/local --no-audit --no-fund --loglevel=error node@20 >/dev/null
	hash -r
	if [ "$(major)" -ge 20 ]; then return 0; fi
	echo "make services: node is still $(node --version), and the tests of clients/js need 20 or newer: put one first in PATH" >&2
	exit 1
}
jars=$(dirname "$0")/jars.sh
# python_servers installs servers of PyPI in folders of their own, whole or not at all.
python_servers() {
	moto=/var/cache/stet-tests/moto
	if [ -x "$moto/complete-5.2.5" ]; then return 0; fi
	echo "make services: installing moto from PyPI in $moto (some 140 MB)"
	rm -rf "$moto"
	mkdir -p "${moto%/*}"
	/usr/bin/python3 -m venv "$moto"
	"$moto/bin/pip" install --quiet --disable-pip-version-check --retries 10 'moto[dynamodb]==5.2.5' flask==3.1.3 flask-cors==6.0.5
	install -m 755 /dev/null "$moto/complete-5.2.5"
}
if [ -z "$missing" ]; then
	new_enough
	python_servers
	exec "$jars"
fi

if ! command -v apt-get >/dev/null 2>&1; then
	echo "make services: there is no apt-get here; install these some other way:$missing" >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "make services: to install$missing, run it as root: sudo make services" >&2
	exit 1
fi

# While packages are installed, no service may be started and no cluster made.
# Both settings go afterwards, unless the machine had its own.
policy=/usr/sbin/policy-rc.d
cluster=/etc/postgresql-common/createcluster.d/stet.conf
ours=
cleared() {
	if [ -n "$ours" ]; then rm -f "$policy"; fi
	rm -f "$cluster"
}
trap cleared EXIT
trap 'exit 1' HUP INT TERM
if [ ! -e "$policy" ]; then
	ours=yes
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
mkdir -p "${cluster%/*}"
echo 'create_main_cluster = false' >"$cluster"

export DEBIAN_FRONTEND=noninteractive
candidate() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [0-9]'; }
for p in $missing; do
	if ! candidate "$p"; then
		apt-get update -qq
		break
	fi
done

# PostgreSQL 15 where there is one, else the distribution's own.
packages=
for p in $missing; do
	if [ "$p" = postgresql ] && candidate postgresql-15; then p=postgresql-15; fi
	packages="$packages $p"
done
echo "make services: installing$packages"
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $packages >/dev/null

# A package enables its service for the next boot, too.
if command -v systemctl >/dev/null 2>&1; then
	for p in $missing; do systemctl disable "$p" >/dev/null 2>&1 || true; done
fi
new_enough
python_servers
"$jars"
