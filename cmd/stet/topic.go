package main

import "github.com/spf13/cobra"

// newStoreTopic is what 'stet help store' says. A test has it name every option.
func newStoreTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "store",
		Short: "Which stores there are, and their options",
		Long: `Every command that has --store has these options, too, and --config FILE, which
takes what is under store: in a configuration of stet proxy; flags go before it.
There, --store-schema is store.schema; 'stet check --reference' explains each.
An option that the store does not have is refused. 'stet keys' takes encryption from
there, too, or from --encryption-keys and --encryption-accept-plain.

  any store   --store-timeout, --store-sweep-every; --store-cache and
              --store-cache-age, for processes that run operations
  PostgreSQL  --store postgres://user:password@host:5432/database
              --store-schema, --store-table, --store-pgbouncer, --store-writers,
              --store-readers, --store-max-queue, --store-may-lose-commits
  SQLite      --store FILE
              --store-busy-timeout, --store-readers, --store-max-queue
  Redis       --store redis://user:password@host:6379/0, or rediss:// with TLS
              --store-prefix, --store-replicas, --store-replica-timeout,
              --store-allow-eviction, --store-check-every, --store-ca,
              --store-certificate, --store-key
  memory      --store memory
              --store-max-records`,
	}
}
