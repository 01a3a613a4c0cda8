//! fjall behind a port that speaks JSON lines: a request is one line, and so is its answer.
//!
//!     fjall_node ADDRESS:PORT
//!
//! `["add", KEY, VALUE]` commits one batch with `SyncAll`; its record holds 12 KiB that cannot be compressed, more than
//! the journal buffers.  `["members", KEY]` answers all values that were added under a key.  Ends when the database is
//! poisoned.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::{env, error::Error, process, thread};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use serde_json::{Value, json};

fn noise() -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..12 * 1024).map(|_| next()).collect()
}

fn answer(database: &Database, elements: &Keyspace, request: &Value) -> fjall::Result<Value> {
    let key = request[1].as_str().unwrap_or_default();
    if request[0] == "add" {
        let mut batch = database.batch().durability(Some(PersistMode::SyncAll));
        batch.insert(elements, format!("{key}/{}", request[2]), noise());
        batch.commit()?;
        return Ok(json!(null));
    }
    let mut found = Vec::new();
    for item in elements.prefix(format!("{key}/")) {
        let name = item.key()?;
        let value = String::from_utf8_lossy(&name[key.len() + 1..]).parse::<i64>();
        found.push(value.expect("a number was added"));
    }
    Ok(json!(found))
}

fn serve(database: Database, elements: Keyspace, stream: TcpStream) -> Result<(), Box<dyn Error>> {
    stream.set_nodelay(true)?;
    let mut write = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answered = answer(&database, &elements, &request);
        if let Err(fjall::Error::Poisoned) = answered {
            eprintln!("the database is poisoned");
            process::exit(1);
        }
        let line = match answered {
            Ok(value) => json!({"ok": value}),
            Err(problem) => json!({"error": format!("{problem:?}")}),
        };
        write.write_all(format!("{line}\n").as_bytes())?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let database = Database::builder("db").open()?;
    let elements = database.keyspace("elements", KeyspaceCreateOptions::default)?;
    let listener = TcpListener::bind(env::args().nth(1).ok_or("no address")?)?;
    loop {
        let (stream, _) = listener.accept()?;
        let (database, elements) = (database.clone(), elements.clone());
        thread::spawn(move || serve(database, elements, stream).unwrap_or_else(|problem| eprintln!("{problem}")));
    }
}
