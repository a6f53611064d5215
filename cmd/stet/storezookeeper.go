package main

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/store/zookeeper"
)

// zookeeperServers returns the servers and the options of a zookeeper:// URL. Such a URL lists several
// hosts, so url.Parse does not read it.
func zookeeperServers(text string) (servers []string, o zookeeper.Options, err error) {
	_, rest, _ := strings.Cut(text, "://")
	hosts, path, found := strings.Cut(rest, "/")
	if path = strings.TrimSuffix(path, "/"); found && path != "" {
		o.Path = "/" + path
	}
	if at := strings.LastIndex(hosts, "@"); at >= 0 {
		o.Auth, err = url.PathUnescape(hosts[:at])
		hosts = hosts[at+1:]
	}
	if servers = zk.FormatServers(strings.Split(hosts, ",")); err != nil || hosts == "" { // the error has the password
		return nil, o, usage{errors.New("--store: the zookeeper URL is malformed; write zookeeper://user:password@host1:2181,host2:2181/path, with special characters of the password percent-encoded")}
	}
	return servers, o, nil
}

func (s *storage) openZooKeeper(ctx context.Context) error {
	servers, o, err := zookeeperServers(s.options.URL)
	if err != nil {
		return err
	}
	db, err := zookeeper.Open(ctx, servers, o)
	if err != nil {
		return err
	}
	s.Store, s.place, s.close = db, "ZooKeeper on "+strings.Join(servers, ", "), db.Close
	return nil
}
