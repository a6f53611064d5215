package rig

import (
	"database/sql"
	"testing"

	_ "github.com/go-sql-driver/mysql" // the driver of database/sql
)

func TestMariaDBKeepsCommittedRowsWhenItIsKilled(t *testing.T) {
	s := NewMariaDB(t, MariaDBOptions{})
	db, err := sql.Open("mysql", s.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{"CREATE TABLE kept (n INT) ENGINE=InnoDB", "INSERT INTO kept VALUES (7)"} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(); err == nil {
		t.Error("a killed server answers")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := db.QueryRow("SELECT n FROM kept").Scan(&n); err != nil || n != 7 {
		t.Errorf("after a kill and a start: %d, %v", n, err)
	}
}
