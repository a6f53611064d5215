package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/stet-go/stet/store/mysql"
	"github.com/stet-go/stet/store/postgres"
)

// Environment variables with the database; the first that is set counts.
var urlVariables = []string{storeVariable, "STET_POSTGRES_URL", "DATABASE_URL"}

// migrate has the flags of all commands below migrate.
type migrate struct {
	settings
	options postgres.Options
}

func newMigrate() *cobra.Command {
	m := &migrate{}
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create, show or drop the tables of stet in PostgreSQL",
		Long: `migrate keeps the tables of stet in a PostgreSQL database. It may be used in turn
with postgres.Migrate, and with a migrator of your own that applies the SQL that
--show-sql prints: all of them read and write the same record of the version.

The database is a URL or a string of key=value pairs. A password in --store can
be seen in the list of processes; in the environment or a file it cannot.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	m.shown(f, "store.url", "database (default $"+strings.Join(urlVariables, ", $")+"); more: 'stet help store'")
	m.shown(f, "store.schema", "schema of the tables (default stet)")
	m.shown(f, "store.table", "table of records, and prefix of other names (default records)")
	m.addStore(f)
	cmd.AddCommand(m.newUp(), m.newDown(), m.newStatus())
	return cmd
}

func (m *migrate) newUp() *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the tables up to the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.with(cmd, show, func(steps []postgres.Migration, db *database) error {
				pending := steps
				if db != nil {
					pending = steps[min(db.version, len(steps)):]
				}
				switch {
				case len(pending) == 0:
					cmd.PrintErrf("%s is at version %d already; nothing to do\n", m.table(), db.version)
					return nil
				case show:
					return m.print(cmd.OutOrStdout(), pending, true)
				}
				if err := db.up(cmd.Context(), cmd.OutOrStdout()); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is at version %d\n", m.table(), len(steps))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&show, "show-sql", false, "print the SQL and change nothing; without a database, of all steps")
	return cmd
}

func (m *migrate) newDown() *cobra.Command {
	var show, yes, force bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Undo the last step",
		Long: `down undoes the last step. Step 5 is the histories of operations, and step 4
holds nothing. Step 3 is the function that emits messages by SQL, and step 2 the
functions that begin and settle operations by SQL: services that call them stop
working. Step 1 is every record, accepted operation and unsent message:
operations that have run already may run again. It is refused without --force
while there is accepted work. Stop all services that use the tables first. A
rollback to the program before needs no down: docs/operate/upgrade.md.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.with(cmd, show, func(steps []postgres.Migration, db *database) error {
				last := len(steps)
				if db != nil {
					last = db.version
				}
				if last == 0 {
					cmd.PrintErrf("%s is not there; nothing to undo\n", m.table())
					return nil
				}
				if last > len(steps) {
					return fmt.Errorf("step %d of %s is that of a newer stet: undo it with the program that applied it", last, m.table())
				}
				if show {
					return m.print(cmd.OutOrStdout(), steps[last-1:last], false)
				}
				if err := db.refuseLoss(cmd.Context(), db.pool, steps[last-1], force); err != nil {
					return err
				}
				if !yes {
					if err := m.confirm(cmd, steps[last-1]); err != nil {
						return err
					}
				}
				return db.down(cmd.Context(), cmd.OutOrStdout(), steps[last-1], force)
			})
		},
	}
	cmd.Flags().BoolVar(&show, "show-sql", false, "print the SQL and change nothing; without a database, of the newest step")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&force, "force", false, "also lose accepted operations and unsent messages")
	return cmd
}

func (m *migrate) newStatus() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which steps are applied, and since when",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.with(cmd, false, func(steps []postgres.Migration, db *database) error {
				states, err := db.states(cmd.Context(), steps)
				if err != nil {
					return err
				}
				if out.json() {
					return m.printJSON(cmd.OutOrStdout(), states, db.version)
				}
				if err := printTable(cmd.OutOrStdout(), states); err != nil {
					return err
				}
				switch {
				case db.version < len(steps):
					cmd.PrintErrf("%s lacks a step; run 'stet migrate up'\n", m.table())
				case db.version > len(steps):
					cmd.PrintErrf("%s has version %d, of a newer stet; this program can use it\n", m.table(), db.version)
				}
				return nil
			})
		},
	}
	out.add(cmd, cmd.Flags())
	return cmd
}

func printTable(w io.Writer, states []stepState) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "STEP\tNAME\tSTATE\tSINCE")
	for _, s := range states {
		since := "-"
		if s.AppliedAt != nil {
			since = s.AppliedAt.Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", s.Step, s.Name, s.State, since)
	}
	return t.Flush()
}

func (m *migrate) printJSON(w io.Writer, states []stepState, version int) error {
	return json.NewEncoder(w).Encode(struct {
		Schema  string      `json:"schema"`
		Table   string      `json:"table"`
		Version int         `json:"version"` // of the tables; 0: there are none
		Steps   []stepState `json:"steps"`
	}{m.options.Schema, m.options.Table, version, states})
}

// with calls f with the steps and the database. The database is nil if it is optional and no
// flag or variable names it.
func (m *migrate) with(cmd *cobra.Command, optional bool, f func([]postgres.Migration, *database) error) error {
	c, err := m.read()
	if err != nil {
		return err
	}
	url := c.Store.URL
	for _, name := range urlVariables {
		url = cmp.Or(url, os.Getenv(name))
	}
	c.Store.URL = url
	m.options.Schema, m.options.Table = cmp.Or(c.Store.Schema, "stet"), cmp.Or(c.Store.Table, "records")
	steps, err := postgres.Migrations(m.options)
	if err != nil {
		return usage{fmt.Errorf("--store-schema or --store-table: %w", err)}
	}
	if c.Store.Kind() == "mysql" {
		return m.mysql(cmd, url, optional)
	}
	if url == "" {
		if optional {
			return f(steps, nil)
		}
		return usage{fmt.Errorf("which database? Give --store, or set %s", strings.Join(urlVariables, " or "))}
	}
	switch kind := c.Store.Kind(); kind {
	case "postgres":
		if err := c.CheckStore(); err != nil {
			return usage{err}
		}
	case "": // keywords and values; or it is refused below
	default:
		return usage{fmt.Errorf("the store is %s, which has no tables to migrate; give the postgres:// URL with --store", map[string]string{"sqlite": "an SQLite file", "redis": "Redis", "zookeeper": "ZooKeeper", "memory": "memory"}[kind])}
	}
	db, err := openDatabase(cmd.Context(), url, m.options)
	if err != nil {
		return err
	}
	defer db.pool.Close()
	return f(steps, db)
}

// mysql makes the tables in MySQL, which only 'stet migrate up' can do.
func (m *migrate) mysql(cmd *cobra.Command, url string, show bool) error {
	if cmd.Name() != "up" || show {
		return usage{errors.New("the store is MySQL, for which there is only 'stet migrate up' without --show-sql")}
	}
	if err := mysql.Migrate(cmd.Context(), url); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "the tables are there: %s\n", mysqlPlace(url))
	return err
}

// table is the name of the table of records, for people.
func (m *migrate) table() string { return m.options.Schema + "." + m.options.Table }

// print writes steps as a script, for psql or a person.
func (m *migrate) print(w io.Writer, steps []postgres.Migration, up bool) error {
	for _, step := range steps {
		direction, sql := "up", step.Up
		if !up {
			direction, sql = "down", step.Down
		}
		// Quoted: a line break in a name would end the comment.
		_, err := fmt.Fprintf(w, "-- %q, step %d %s, %s\nBEGIN;\n%s;\n\n%s\nCOMMIT;\n",
			m.table(), step.Version, step.Name, direction, step.Lock, strings.TrimSpace(sql))
		if err != nil {
			return err
		}
	}
	return nil
}

// downLoses describes the loss when a step is undone, by its version.
var downLoses = map[int]string{
	1: "drops every record, accepted operation and unsent message;\noperations that have run already may run again",
	2: "drops its functions: services that begin and settle\noperations by SQL stop working; records stay",
	3: "drops its function: services that emit messages by SQL\nstop working; messages in a record stay",
	4: "loses nothing",
	5: "drops the histories of operations: why they got into\ntrouble, and who resolved them; records stay",
}

// confirm asks the operator to type the name of the table that loses its records.
func (m *migrate) confirm(cmd *cobra.Command, step postgres.Migration) error {
	cmd.PrintErrf("Undoing step %d, %s, %s.\nType %s to continue: ",
		step.Version, step.Name, downLoses[step.Version], m.table())
	return typed(cmd, m.table())
}

// typed returns an error unless the operator types the text. An interrupt does not end a read,
// therefore the read may last until the process ends.
func typed(cmd *cobra.Command, want string) error {
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		answer <- line
	}()
	select {
	case line := <-answer:
		if strings.TrimSpace(line) == want {
			return nil
		}
	case <-cmd.Context().Done():
	}
	return fmt.Errorf("not confirmed; nothing was changed. Type %s when asked, or give --yes", want)
}
