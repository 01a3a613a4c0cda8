//! Each store, with the options that make a transaction durable when it returns.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

pub type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// `get` returns None if the key has no value.
pub trait Transaction {
    fn get(&mut self, key: &str) -> Fallible<Option<Vec<u8>>>;
    fn set(&mut self, key: &str, value: Vec<u8>) -> Fallible<()>;
}

pub type Run<'a> = &'a mut dyn FnMut(&mut dyn Transaction) -> Fallible<Value>;

pub trait Store: Send + Sync {
    /// Run a function as one transaction.  The inner error says that the store refused the transaction, so it had no effect.
    fn transact(&self, run: Run) -> Fallible<Result<Value, String>>;
    /// All keys with a prefix, in any order.
    fn keys(&self, prefix: &str) -> Fallible<Vec<String>>;
}

pub fn open(name: &str) -> Fallible<Arc<dyn Store>> {
    Ok(match name {
        "redb" => Arc::new(in_redb::open()?),
        "surrealkv" => Arc::new(in_surrealkv::open()?),
        "surrealkv-0.21.2" => Arc::new(in_surrealkv_0_21_2::open()?),
        "sled" => Arc::new(in_sled::open()?),
        "persy" => Arc::new(in_persy::open()?),
        "canopydb" => Arc::new(in_canopydb::open()?),
        "heed" => Arc::new(in_heed::open()?),
        _ => return Err("no such store".into()),
    })
}

fn after(prefix: &str) -> String {
    format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix)) // '0' follows '/'
}

mod in_redb {
    use super::*;
    use redb::{Database, ReadableDatabase, Table, TableDefinition};

    const ALL: TableDefinition<&str, &[u8]> = TableDefinition::new("all");

    pub fn open() -> Fallible<Database> {
        let store = Database::create("db")?;
        let on = store.begin_write()?;
        on.open_table(ALL)?;
        on.commit()?;
        Ok(store)
    }

    impl Store for Database {
        fn transact(&self, run: Run) -> Fallible<Result<Value, String>> {
            let on = self.begin_write()?;
            let found = run(&mut on.open_table(ALL)?)?;
            on.commit()?;
            Ok(Ok(found))
        }

        fn keys(&self, prefix: &str) -> Fallible<Vec<String>> {
            let mut found = Vec::new();
            for row in self.begin_read()?.open_table(ALL)?.range(prefix..after(prefix).as_str())? {
                found.push(row?.0.value().to_owned());
            }
            Ok(found)
        }
    }

    impl Transaction for Table<'_, &'static str, &'static [u8]> {
        fn get(&mut self, key: &str) -> Fallible<Option<Vec<u8>>> {
            Ok(redb::ReadableTable::get(self, key)?.map(|held| held.value().to_vec()))
        }

        fn set(&mut self, key: &str, value: Vec<u8>) -> Fallible<()> {
            self.insert(key, value.as_slice())?;
            Ok(())
        }
    }
}

macro_rules! surrealkv_of {
    ($module:ident, $library:ident, $get:ident) => {
        mod $module {
            use super::*;
            use $library::{Durability, Error as Problem, LSMIterator, Transaction as On, Tree, TreeBuilder};
            use tokio::runtime::{Builder, Runtime};

            pub struct Surreal(Tree, Runtime);

            pub fn open() -> Fallible<Surreal> {
                let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
                let inside = runtime.enter();
                let tree = TreeBuilder::new().with_path("db".into()).with_max_memtable_size(256 << 10).build()?;
                drop(inside);
                Ok(Surreal(tree, runtime))
            }

            impl Store for Surreal {
                fn transact(&self, run: Run) -> Fallible<Result<Value, String>> {
                    let mut on = self.0.begin()?.with_durability(Durability::Immediate);
                    let found = run(&mut on)?;
                    match self.1.block_on(on.commit()) {
                        Err(Problem::TransactionWriteConflict) => Ok(Err("TransactionWriteConflict".into())),
                        Err(problem) => Err(problem.into()),
                        Ok(()) => Ok(Ok(found)),
                    }
                }

                fn keys(&self, prefix: &str) -> Fallible<Vec<String>> {
                    let on = self.0.begin()?;
                    let mut rows = on.range(prefix.as_bytes(), after(prefix).as_bytes())?;
                    let mut found = Vec::new();
                    rows.seek_first()?;
                    while rows.valid() {
                        found.push(String::from_utf8(rows.key().user_key().to_vec())?);
                        rows.next()?;
                    }
                    Ok(found)
                }
            }

            impl Transaction for On {
                fn get(&mut self, key: &str) -> Fallible<Option<Vec<u8>>> {
                    Ok(On::$get(self, key.as_bytes())?.map(|held| held.to_vec()))
                }

                fn set(&mut self, key: &str, value: Vec<u8>) -> Fallible<()> {
                    Ok(On::set(self, key.as_bytes(), value.as_slice())?)
                }
            }
        }
    };
}

surrealkv_of!(in_surrealkv, surrealkv, get_for_update);
surrealkv_of!(in_surrealkv_0_21_2, surrealkv_0_21_2, get);

mod in_sled {
    use super::*;
    use sled::transaction::{ConflictableTransactionError, TransactionError, TransactionalTree};
    use sled::{Config, Db};

    pub fn open() -> Fallible<Db> {
        Ok(Config::new().path("db").cache_capacity(1 << 20).open()?)
    }

    impl Store for Db {
        fn transact(&self, run: Run) -> Fallible<Result<Value, String>> {
            let run = std::cell::RefCell::new(run);
            let done = self.transaction(|on| {
                let mut on = on;
                let found = (run.borrow_mut())(&mut on).map_err(ConflictableTransactionError::Abort)?;
                on.flush();
                Ok(found)
            });
            match done {
                Ok(found) => Ok(Ok(found)),
                Err(TransactionError::Abort(problem)) => Err(problem),
                Err(TransactionError::Storage(problem)) => Err(problem.into()),
            }
        }

        fn keys(&self, prefix: &str) -> Fallible<Vec<String>> {
            let mut found = Vec::new();
            for row in self.scan_prefix(prefix) {
                found.push(String::from_utf8(row?.0.to_vec())?);
            }
            Ok(found)
        }
    }

    impl Transaction for &TransactionalTree {
        fn get(&mut self, key: &str) -> Fallible<Option<Vec<u8>>> {
            let held = TransactionalTree::get(self, key).map_err(|problem| format!("{problem:?}"))?;
            Ok(held.map(|held| held.to_vec()))
        }

        fn set(&mut self, key: &str, value: Vec<u8>) -> Fallible<()> {
            self.insert(key, value).map_err(|problem| format!("{problem:?}"))?;
            Ok(())
        }
    }
}

mod in_persy {
    use super::*;
    use persy::{ByteVec, Config, Persy, Transaction as On, ValueMode};

    pub fn open() -> Fallible<Persy> {
        Ok(Persy::open_or_create_with("db", Config::new(), |store| {
            let mut on = store.begin()?;
            on.create_index::<String, ByteVec>("all", ValueMode::Replace)?;
            on.prepare()?.commit()?;
            Ok(())
        })?)
    }

    impl Store for Persy {
        fn transact(&self, run: Run) -> Fallible<Result<Value, String>> {
            let mut on = self.begin()?;
            let found = run(&mut on)?;
            on.prepare()?.commit()?;
            Ok(Ok(found))
        }

        fn keys(&self, prefix: &str) -> Fallible<Vec<String>> {
            let rows = self.range::<String, ByteVec, _>("all", prefix.to_owned()..after(prefix))?;
            Ok(rows.map(|(key, _)| key).collect())
        }
    }

    impl Transaction for On {
        fn get(&mut self, key: &str) -> Fallible<Option<Vec<u8>>> {
            Ok(self.one::<String, ByteVec>("all", &key.to_owned())?.map(|held| held.to_vec()))
        }

        fn set(&mut self, key: &str, value: Vec<u8>) -> Fallible<()> {
            Ok(self.put("all", key.to_owned(), ByteVec::new(value))?)
        }
    }
}

mod in_canopydb {
    use super::*;
    use canopydb::{Database, Tree};

    pub fn open() -> Fallible<Database> {
        std::fs::create_dir_all("db")?;
        let store = Database::new(Path::new("db"))?;
        let on = store.begin_write()?;
        on.get_or_create_tree(b"all")?;
        on.commit_with(true)?;
        Ok(store)
    }

    impl Store for Database {
        fn transact(&self, run: Run) -> Fallible<Result<Value, String>> {
            let on = self.begin_write()?;
            let found = run(&mut on.get_or_create_tree(b"all")?)?;
            on.commit_with(true)?;
            Ok(Ok(found))
        }

        fn keys(&self, prefix: &str) -> Fallible<Vec<String>> {
            let on = self.begin_read()?;
            let tree = on.get_tree(b"all")?.ok_or("no tree")?;
            let mut found = Vec::new();
            for key in tree.prefix_keys(&prefix)? {
                found.push(String::from_utf8(key?.to_vec())?);
            }
            Ok(found)
        }
    }

    impl Transaction for Tree<'_> {
        fn get(&mut self, key: &str) -> Fallible<Option<Vec<u8>>> {
            Ok(Tree::get(self, key.as_bytes())?.map(|held| held.to_vec()))
        }

        fn set(&mut self, key: &str, value: Vec<u8>) -> Fallible<()> {
            Ok(self.insert(key.as_bytes(), &value)?)
        }
    }
}

mod in_heed {
    use super::*;
    use heed::types::{Bytes, Str};
    use heed::{Database, Env, EnvOpenOptions, RwTxn};

    type All = Database<Str, Bytes>;

    pub struct Lmdb(Env, All);

    struct On<'a>(RwTxn<'a>, All);

    pub fn open() -> Fallible<Lmdb> {
        std::fs::create_dir_all("db")?;
        // SAFETY: this process alone opens the files, and once.
        let store = unsafe { EnvOpenOptions::new().map_size(256 << 20).open("db")? };
        let mut on = store.write_txn()?;
        let all = store.create_database(&mut on, None)?;
        on.commit()?;
        Ok(Lmdb(store, all))
    }

    impl Store for Lmdb {
        fn transact(&self, run: Run) -> Fallible<Result<Value, String>> {
            let mut on = On(self.0.write_txn()?, self.1);
            let found = run(&mut on)?;
            on.0.commit()?;
            Ok(Ok(found))
        }

        fn keys(&self, prefix: &str) -> Fallible<Vec<String>> {
            let on = self.0.read_txn()?;
            let mut found = Vec::new();
            for row in self.1.prefix_iter(&on, prefix)? {
                found.push(row?.0.to_owned());
            }
            Ok(found)
        }
    }

    impl Transaction for On<'_> {
        fn get(&mut self, key: &str) -> Fallible<Option<Vec<u8>>> {
            Ok(self.1.get(&self.0, key)?.map(<[u8]>::to_vec))
        }

        fn set(&mut self, key: &str, value: Vec<u8>) -> Fallible<()> {
            Ok(self.1.put(&mut self.0, key, &value)?)
        }
    }
}
