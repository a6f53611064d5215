package main

import "github.com/spf13/cobra"

// newStoreTopic is the text of 'stet help store'. A test checks that it names every option.
func newStoreTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "store",
		Short: "Which stores there are, and their options",
		Long: `Every command with --store has these options, and --config FILE, which reads the
section store: of a configuration of stet proxy. A flag overrides the file. There,
--store-schema is store.schema; 'stet check --reference' explains each option.
An option of another store is refused. 'stet keys' also reads encryption from the
file, or from --encryption-keys and --encryption-accept-plain.

  any store   --store-timeout, --store-sweep-every; --store-cache and
              --store-cache-age, for processes that run operations
  PostgreSQL  --store postgres://user:password@host:5432/database
              --store-schema, --store-table, --store-pgbouncer, --store-writers,
              --store-readers, --store-may-lose-commits
  MySQL       --store mysql://user:password@host:3306/database
              --store-max-queue
  SQLite      --store FILE
              --store-busy-timeout, --store-readers, --store-max-queue
  Redis       --store redis://user:password@host:6379/0, or rediss:// with TLS
              --store-prefix, --store-replicas, --store-replica-timeout,
              --store-allow-eviction, --store-check-every, --store-ca,
              --store-certificate, --store-key, --store-outcomes
  ZooKeeper   --store zookeeper://user:password@host1:2181,host2:2181/path
              without accepted operations and messages
  memory      --store memory
              --store-max-records`,
	}
}
