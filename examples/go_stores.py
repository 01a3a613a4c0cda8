"""Stores in Go with one file or one log each, embedded in a program that speaks JSON lines.

Each promises that a write is on the disk when it returns, with the options that are set here:

* bbolt 1.5.0, the store of etcd: its README calls it "fully serializable" with "ACID semantics".
* BuntDB 1.3.0: `SyncPolicy: Always` "is used to sync data after every write to disk".
* goleveldb of July 2022, LevelDB in Go: with `WriteOptions.Sync` a write survives a crash of the machine.
* NutsDB: with `SyncEnable` "the data will be persisted to disk after each write".
"""

from go_store import GoStore, made

BBOLT = r"""
package main

import (
	"bytes"

	"go.etcd.io/bbolt"
)

type boltStore struct{ *bbolt.DB }

type boltTransaction struct{ *bbolt.Bucket }

func open() store {
	db := must(bbolt.Open("db", 0600, nil))
	must(0, db.Update(func(on *bbolt.Tx) error { _, err := on.CreateBucketIfNotExists([]byte("all")); return err }))
	return boltStore{db}
}

func (s boltStore) transact(run func(transaction) error) (bool, error) {
	return false, s.Update(func(on *bbolt.Tx) error { return run(boltTransaction{on.Bucket([]byte("all"))}) })
}

func (s boltStore) keys(prefix string) ([]string, error) {
	found := []string{}
	err := s.View(func(on *bbolt.Tx) error {
		rows := on.Bucket([]byte("all")).Cursor()
		for key, _ := rows.Seek([]byte(prefix)); bytes.HasPrefix(key, []byte(prefix)); key, _ = rows.Next() {
			found = append(found, string(key[len(prefix):]))
		}
		return nil
	})
	return found, err
}

func (t boltTransaction) get(key string) ([]byte, error) { return t.Get([]byte(key)), nil }

func (t boltTransaction) set(key string, value []byte) error { return t.Put([]byte(key), value) }
"""

BUNTDB = r"""
package main

import (
	"errors"

	"github.com/tidwall/buntdb"
)

type buntStore struct{ *buntdb.DB }

type buntTransaction struct{ *buntdb.Tx }

func open() store {
	db := must(buntdb.Open("db"))
	shrunk := buntdb.Config{SyncPolicy: buntdb.Always, AutoShrinkPercentage: 50, AutoShrinkMinSize: 1 << 20}
	must(0, db.SetConfig(shrunk))
	return buntStore{db}
}

func (s buntStore) transact(run func(transaction) error) (bool, error) {
	return false, s.Update(func(on *buntdb.Tx) error { return run(buntTransaction{on}) })
}

func (s buntStore) keys(prefix string) ([]string, error) {
	found := []string{}
	err := s.View(func(on *buntdb.Tx) error {
		return on.AscendKeys(prefix+"*", func(key, _ string) bool {
			found = append(found, key[len(prefix):])
			return true
		})
	})
	return found, err
}

func (t buntTransaction) get(key string) ([]byte, error) {
	text, err := t.Get(key)
	if errors.Is(err, buntdb.ErrNotFound) {
		return nil, nil
	}
	return []byte(text), err
}

func (t buntTransaction) set(key string, value []byte) error {
	_, _, err := t.Set(key, string(value), nil)
	return err
}
"""

GOLEVELDB = r"""
package main

import (
	"errors"
	"sync"

	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/opt"
	"github.com/syndtr/goleveldb/leveldb/util"
)

type levelStore struct {
	*leveldb.DB
	one *sync.Mutex
}

type levelTransaction struct {
	*leveldb.DB
	batch *leveldb.Batch
}

func open() store {
	return levelStore{must(leveldb.OpenFile("db", nil)), new(sync.Mutex)}
}

func (s levelStore) transact(run func(transaction) error) (bool, error) {
	s.one.Lock()
	defer s.one.Unlock()
	on := levelTransaction{s.DB, new(leveldb.Batch)}
	if err := run(on); err != nil {
		return false, err
	}
	return false, s.Write(on.batch, &opt.WriteOptions{Sync: true})
}

func (s levelStore) keys(prefix string) ([]string, error) {
	found, rows := []string{}, s.NewIterator(util.BytesPrefix([]byte(prefix)), nil)
	defer rows.Release()
	for rows.Next() {
		found = append(found, string(rows.Key()[len(prefix):]))
	}
	return found, rows.Error()
}

func (t levelTransaction) get(key string) ([]byte, error) {
	text, err := t.Get([]byte(key), nil)
	if errors.Is(err, leveldb.ErrNotFound) {
		return nil, nil
	}
	return text, err
}

func (t levelTransaction) set(key string, value []byte) error {
	t.batch.Put([]byte(key), value)
	return nil
}
"""

NUTSDB = r"""
package main

import (
	"errors"
	"strings"
	"time"

	"github.com/nutsdb/nutsdb"
)

type nutsStore struct{ *nutsdb.DB }

type nutsTransaction struct{ *nutsdb.Tx }

func open() store {
	small := nutsdb.WithSegmentSize(1 << 18)
	db := must(nutsdb.Open(nutsdb.DefaultOptions, nutsdb.WithDir("db"), nutsdb.WithSyncEnable(true), small))
	must(0, db.Update(func(on *nutsdb.Tx) error {
		if on.ExistBucket(nutsdb.DataStructureBTree, "all") {
			return nil
		}
		return on.NewBucket(nutsdb.DataStructureBTree, "all")
	}))
	go func() {
		for range time.Tick(5 * time.Second) {
			_ = db.Merge() // fails if there are fewer than two files
		}
	}()
	return nutsStore{db}
}

func (s nutsStore) transact(run func(transaction) error) (bool, error) {
	return false, s.Update(func(on *nutsdb.Tx) error { return run(nutsTransaction{on}) })
}

func (s nutsStore) keys(prefix string) ([]string, error) {
	found := []string{}
	err := s.View(func(on *nutsdb.Tx) error {
		all, err := on.GetKeys("all")
		for _, key := range all {
			if rest, ok := strings.CutPrefix(string(key), prefix); ok {
				found = append(found, rest)
			}
		}
		return err
	})
	return found, err
}

func (t nutsTransaction) get(key string) ([]byte, error) {
	text, err := t.Get("all", []byte(key))
	if errors.Is(err, nutsdb.ErrKeyNotFound) {
		return nil, nil
	}
	return text, err
}

func (t nutsTransaction) set(key string, value []byte) error { return t.Put("all", []byte(key), value, nutsdb.Persistent) }
"""


BUNTDB_MODULE = "github.com/tidwall/buntdb@v1.3.0"
GOLEVELDB_MODULE = "github.com/syndtr/goleveldb/leveldb@v1.0.1-0.20220721030215-126854af5e6d"
NUTSDB_MODULE = "github.com/nutsdb/nutsdb@v1.1.0"

# A failed fsync ends the process, because the content of the disk is then unknown.
BUNTDB_MEND = r"""--- a/vendor/github.com/tidwall/buntdb/buntdb.go
+++ b/vendor/github.com/tidwall/buntdb/buntdb.go
@@ -1232,7 +1232,9 @@
 			tx.rollbackInner()
 		}
 		if tx.db.config.SyncPolicy == Always {
-			_ = tx.db.file.Sync()
+			if err := tx.db.file.Sync(); err != nil {
+				panicErr(err)
+			}
 		}
 		// Increment the number of flushes. The background syncing uses this.
 		tx.db.flushes++
"""

GOLEVELDB_MEND = r"""--- a/vendor/github.com/syndtr/goleveldb/leveldb/db_write.go
+++ b/vendor/github.com/syndtr/goleveldb/leveldb/db_write.go
@@ -27,7 +27,9 @@
 		return err
 	}
 	if sync {
-		return db.journalWriter.Sync()
+		if err := db.journalWriter.Sync(); err != nil {
+			panic(err)
+		}
 	}
 	return nil
 }
"""

# The file of buckets is fsynced; the end of the log does not move if an fsync fails; a wrong checksum in the newest
# file ends the file.
NUTSDB_MEND = r"""--- a/vendor/github.com/nutsdb/nutsdb/bucket_manager.go
+++ b/vendor/github.com/nutsdb/nutsdb/bucket_manager.go
@@ -78,4 +78,6 @@
 	}
-	_, err := bm.fd.Write(bytes)
-	return err
+	if _, err := bm.fd.Write(bytes); err != nil {
+		return err
+	}
+	return bm.fd.Sync()
 }
--- a/vendor/github.com/nutsdb/nutsdb/tx.go
+++ b/vendor/github.com/nutsdb/nutsdb/tx.go
@@ -511,5 +511,2 @@
 
-	tx.db.ActiveFile.writeOff += int64(l)
-	tx.db.ActiveFile.ActualSize += int64(l)
-
 	if tx.db.opt.SyncEnable {
@@ -520,2 +517,5 @@
 
+	tx.db.ActiveFile.writeOff += int64(l)
+	tx.db.ActiveFile.ActualSize += int64(l)
+
 	return
--- a/vendor/github.com/nutsdb/nutsdb/db.go
+++ b/vendor/github.com/nutsdb/nutsdb/db.go
@@ -525,3 +525,3 @@
 				}
-				if off >= db.opt.SegmentSize {
+				if off >= db.opt.SegmentSize || fID == db.MaxFileID && errors.Is(err, ErrCrc) {
 					break
"""


class Bbolt(GoStore):
    needs = made("bbolt 1.5.0", "go.etcd.io/bbolt@v1.5.0", BBOLT)


class BuntDB(GoStore):
    """BuntDB compacts its file as soon as the file has 1 MiB and half of it is outdated."""

    needs = made("BuntDB 1.3.0", BUNTDB_MODULE, BUNTDB)


class BuntDBMended(GoStore):
    needs = made("BuntDB 1.3.0 with a mend", BUNTDB_MODULE, BUNTDB, BUNTDB_MEND)


class GoLevelDB(GoStore):
    needs = made("goleveldb of July 2022", GOLEVELDB_MODULE, GOLEVELDB)


class GoLevelDBMended(GoStore):
    needs = made("goleveldb of July 2022 with a mend", GOLEVELDB_MODULE, GOLEVELDB, GOLEVELDB_MEND)


class NutsDB(GoStore):
    """NutsDB merges its files every 5 s."""

    needs = made("NutsDB 1.1.0", NUTSDB_MODULE, NUTSDB)


class NutsDBMended(GoStore):
    needs = made("NutsDB 1.1.0 with a mend", NUTSDB_MODULE, NUTSDB, NUTSDB_MEND)


class NutsDB104(GoStore):
    needs = made("NutsDB 1.0.4", "github.com/nutsdb/nutsdb@v1.0.4", NUTSDB)
