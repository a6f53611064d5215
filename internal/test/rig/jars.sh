#!/bin/sh
# Downloads the brokers that Debian does not have, Apache Kafka and ElasticMQ, from Maven's
# central repository with mvn. Each is a folder of jars below $STET_TEST_CACHE, by default
# /var/cache/stet-tests, and is downloaded once for the machine. The versions are also in jars.go.
set -eu

cache=${STET_TEST_CACHE:-/var/cache/stet-tests}
kafka=4.3.1
elasticmq=1.6.14
tries=4
# Kafka has no library that writes its log.
log="<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>"

# download FOLDER GROUP ARTIFACT VERSION MORE: the jars of an artifact and of its dependencies, if
# they are not there. MORE is further dependencies, in XML.
download() {
	if [ -d "$cache/$1" ]; then return 0; fi
	if ! mkdir -p "$cache" || [ ! -w "$cache" ]; then
		echo "make services: $cache cannot be written; run it as root, or set STET_TEST_CACHE to a folder of yours, also for the tests" >&2
		exit 1
	fi
	work=$(mktemp -d "$cache/.$1.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM
	echo "make services: downloading $3 $4 and its dependencies"
	cat >"$work/pom.xml" <<-POM
		<project><modelVersion>4.0.0</modelVersion><groupId>stet</groupId><artifactId>jars</artifactId><version>1</version>
		<dependencies><dependency><groupId>$2</groupId><artifactId>$3</artifactId><version>$4</version></dependency>$5</dependencies></project>
	POM
	try=1
	until (cd "$work" && mvn --batch-mode --quiet --update-snapshots org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/jars" >"$work/log" 2>&1); do
		if [ "$try" -ge "$tries" ]; then
			echo "make services: $3 $4 could not be downloaded by mvn in $tries tries; the end of its output:" >&2
			tail -n 15 "$work/log" >&2
			exit 1
		fi
		echo "make services: mvn has failed to download $3 $4; try $((try + 1)) of $tries follows"
		sleep $((5 * try))
		try=$((try + 1))
	done
	chmod 755 "$work/jars"
	chmod 644 "$work/jars"/*
	if ! mv "$work/jars" "$cache/$1" 2>/dev/null && [ ! -d "$cache/$1" ]; then
		echo "make services: $work/jars cannot be moved to $cache/$1" >&2
		exit 1
	fi
	rm -rf "$work"
	echo "make services: downloaded $3 $4 to $cache/$1"
}

download "kafka-$kafka" org.apache.kafka kafka_2.13 "$kafka" "$log"
download "elasticmq-$elasticmq" org.elasticmq elasticmq-server_2.13 "$elasticmq" ""
