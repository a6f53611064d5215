//go:build machine

// The tests with the tag machine install packages in a copy of this machine: make release-check.

package main

import (
	"strings"
	"testing"
)

// overlay runs a script in a copy of this machine's file system. Everything that the script
// changes is in a file system in memory, which ends with the script.
const overlay = `set -eu
mount -t tmpfs none "$1"
cd "$1"
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work none root
mount --bind /dev root/dev
mount -t proc none root/proc
mount -t tmpfs none root/tmp
mount -t tmpfs none root/run # without /run/systemd, the scripts do not call systemctl
mkdir root/tmp/first root/tmp/second
mount --bind "$2" root/tmp/first
mount --bind "$3" root/tmp/second
chroot root sh -euc "$4"
find upper -type f -o -type l
grep -l stet upper/etc/passwd upper/etc/group upper/etc/shadow upper/etc/gshadow || true
`

const life = `export DEBIAN_FRONTEND=noninteractive
dpkg --install /tmp/first/*.deb
stat --format "%U:%G %a %n" /etc/stet /etc/stet/stet.yaml /var/lib/stet
as="setpriv --reuid stet --regid stet --clear-groups"
$as stet --version
$as stet check /etc/stet/stet.yaml
cd /var/lib/stet
$as stet proxy --config /etc/stet/stet.yaml --listen 127.0.0.1:0 --admin-listen off &
proxy=$!
while [ ! -s stet.db ]; do kill -0 $proxy; sleep 0.1; done
kill $proxy
wait $proxy
cd /
systemd-analyze security --offline=true --threshold=15 stet.service | tail -n 1
echo "# changed by the operator" >>/etc/stet/stet.yaml
dpkg --install /tmp/second/*.deb
stet --version
tail -n 1 /etc/stet/stet.yaml
dpkg --remove stet
ls /var/lib/stet/stet.db /etc/stet/stet.yaml
dpkg --purge stet
`

// TestDebianPackageIsInstalledUpgradedAndPurged also runs the program as its user, and wants
// no file of the package to remain.
func TestDebianPackageIsInstalledUpgradedAndPurged(t *testing.T) {
	first, second := packages(t)
	out := tool(t, "/", "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", overlay, "sh", t.TempDir(), first, second, life)
	for _, want := range []string{"root:stet 750 /etc/stet\n", "root:stet 640 /etc/stet/stet.yaml\n", "stet:stet 750 /var/lib/stet\n",
		"stet version v1.2.3, commit ", "/etc/stet/stet.yaml is acceptable", "stet version v1.3.0, commit ", "# changed by the operator"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for line := range strings.Lines(out) {
		path, changed := strings.CutPrefix(strings.TrimSpace(line), "upper/")
		if changed && !strings.HasPrefix(path, "var/lib/dpkg/") && !strings.HasPrefix(path, "var/log/") && !accounts[path] {
			t.Errorf("after the purge there is %s", path)
		}
		if changed && strings.Contains(path, "stet") {
			t.Errorf("after the purge there is %s", path)
		}
	}
	if !strings.Contains(out, "Unpacking stet (1.3.0) over (1.2.3)") {
		t.Error("the version of the package is not that of the release")
	}
	if n := strings.Count(out, "upper/etc/passwd\n"); n != 1 || strings.Count(out, "upper/etc/group\n") != 1 {
		t.Errorf("the user is there after the purge: %d", n)
	}
	if t.Failed() {
		t.Log(out)
	}
}

// accounts are files that useradd and userdel write.
var accounts = map[string]bool{
	"etc/passwd": true, "etc/passwd-": true, "etc/group": true, "etc/group-": true, "etc/shadow": true, "etc/shadow-": true, "etc/gshadow": true, "etc/gshadow-": true,
	"etc/subuid": true, "etc/subuid-": true, "etc/subgid": true, "etc/subgid-": true, "etc/.pwd.lock": true, "var/cache/ldconfig/aux-cache": true,
}
