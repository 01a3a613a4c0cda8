"""Badger 4.9.6, the store of Dgraph in Go, embedded in a program that speaks JSON lines.

Promised in its README: "concurrent ACID transactions with serializable snapshot isolation", and in the comment of
`WithSyncWrites`: writes go "to disk to survive hard reboots".
"""

from go_store import GoStore, made

MODULE = "github.com/dgraph-io/badger/v4@v4.9.6"
STORE = r"""
package main

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

type badgerStore struct{ *badger.DB }

type badgerTransaction struct{ *badger.Txn }

func open() store {
	options := badger.DefaultOptions("db").WithSyncWrites(true).WithValueLogFileSize(1 << 24) // of which no value comes
	small := options.WithMemTableSize(1 << 22).WithValueThreshold(1 << 16).WithBaseTableSize(1 << 20)
	return badgerStore{must(badger.Open(small.WithNumMemtables(2).WithNumLevelZeroTables(2)))}
}

func (s badgerStore) transact(run func(transaction) error) (bool, error) {
	err := s.Update(func(on *badger.Txn) error { return run(badgerTransaction{on}) })
	return errors.Is(err, badger.ErrConflict), err
}

func (s badgerStore) keys(prefix string) ([]string, error) {
	found := []string{}
	err := s.View(func(on *badger.Txn) error {
		options := badger.IteratorOptions{Prefix: []byte(prefix)}
		rows := on.NewIterator(options)
		defer rows.Close()
		for rows.Rewind(); rows.Valid(); rows.Next() {
			found = append(found, string(rows.Item().Key()[len(prefix):]))
		}
		return nil
	})
	return found, err
}

func (t badgerTransaction) get(key string) ([]byte, error) {
	item, err := t.Get([]byte(key))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return item.ValueCopy(nil)
}

func (t badgerTransaction) set(key string, value []byte) error { return t.Set([]byte(key), value) }
"""


# A failed fsync ends the process, because the content of the disk is then unknown.  An empty file counts as new.
MEND = r"""--- a/vendor/github.com/dgraph-io/badger/v4/db.go
+++ b/vendor/github.com/dgraph-io/badger/v4/db.go
@@ -861,3 +861,5 @@
 	if db.opt.SyncWrites {
-		return db.mt.SyncWAL()
+		if err := db.mt.SyncWAL(); err != nil {
+			panic(err)
+		}
 	}
--- a/vendor/github.com/dgraph-io/badger/v4/memtable.go
+++ b/vendor/github.com/dgraph-io/badger/v4/memtable.go
@@ -75,3 +75,3 @@
 		mt, err := db.openMemTable(fid, flags)
-		if err != nil {
+		if err != nil && err != z.NewFile {
 			return y.Wrapf(err, "while opening fid: %d", fid)
--- a/vendor/github.com/dgraph-io/badger/v4/value.go
+++ b/vendor/github.com/dgraph-io/badger/v4/value.go
@@ -611,3 +611,3 @@
 		if err := lf.open(vlog.fpath(fid), flags,
-			2*vlog.opt.ValueLogFileSize); err != nil {
+			2*vlog.opt.ValueLogFileSize); err != nil && err != z.NewFile {
 			return y.Wrapf(err, "Open existing file: %q", lf.path)
"""


class Badger(GoStore):
    """Small memtables, so that tables are written and compacted within a minute."""

    needs = made("Badger 4.9.6", MODULE, STORE)


class BadgerMended(Badger):
    needs = made("Badger 4.9.6 with a mend", MODULE, STORE, MEND)
