//! Embedded stores in Rust behind a port that speaks JSON lines: a request is one line, and so is its answer.
//!
//!     stores_node STORE ADDRESS:PORT
//!
//! `["add", KEY, VALUE]` sets one key.  `["members", KEY]` answers all values that were added under a key.
//! `["transact", STEPS]` runs steps `["append", KEY, VALUE]` and `["r", KEY, null]` as one transaction, and answers
//! them with the lists that were read.  Each transaction is durable when it returns, and writes 4 KiB with each key
//! that cannot be compressed, so that files grow and are compacted.

mod stores;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, LazyLock};
use std::{collections::HashMap, env, error::Error, thread};

use serde_json::{Value, json};

use stores::{Fallible, Store, Transaction};

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..4096).map(|_| next()).collect()
});

/// The list comes first, on its own line.
fn list_of(held: &[u8]) -> Fallible<Vec<Value>> {
    let end = held.iter().position(|&byte| byte == b'\n').ok_or("a value has no line")?;
    Ok(serde_json::from_slice(&held[..end])?)
}

fn run(steps: &Value, on: &mut dyn Transaction) -> Fallible<Value> {
    let mut written = HashMap::<String, Vec<Value>>::new(); // in some stores a transaction cannot read its own writes
    let mut done = Vec::new();
    for step in steps.as_array().ok_or("no steps")? {
        let key = format!("list/{}", step[1].as_str().ok_or("no key")?);
        let mut list = match written.get(&key) {
            Some(list) => list.clone(),
            None => on.get(&key)?.map_or(Ok(Vec::new()), |held| list_of(&held))?,
        };
        if step[0] == "r" {
            done.push(json!([step[0], step[1], list]));
            continue;
        }
        list.push(step[2].clone());
        let mut value = serde_json::to_vec(&list)?;
        value.push(b'\n');
        value.extend_from_slice(&NOISE);
        on.set(&key, value)?;
        written.insert(key, list);
        done.push(step.clone());
    }
    Ok(Value::Array(done))
}

fn answer(store: &dyn Store, request: &Value) -> Fallible<Result<Value, String>> {
    let key = request[1].as_str().unwrap_or_default();
    match request[0].as_str() {
        Some("add") => {
            let name = format!("{key}/{}", request[2]);
            store.transact(&mut |on| on.set(&name, NOISE.clone()).map(|()| Value::Null))
        }
        Some("members") => {
            let names = store.keys(&format!("{key}/"))?;
            let found: Result<Vec<i64>, _> = names.iter().map(|name| name[key.len() + 1..].parse()).collect();
            Ok(Ok(json!(found?)))
        }
        _ => store.transact(&mut |on| run(&request[1], on)),
    }
}

fn serve(store: Arc<dyn Store>, stream: TcpStream) -> Fallible<()> {
    stream.set_nodelay(true)?;
    let mut write = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let line = match answer(&*store, &serde_json::from_str(&line?)?) {
            Ok(Ok(value)) => json!({"ok": value}),
            Ok(Err(conflict)) => json!({"refused": conflict}),
            Err(problem) => json!({"error": problem.to_string()}),
        };
        write.write_all(format!("{line}\n").as_bytes())?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().collect();
    let [_, name, address] = words.as_slice() else { return Err("STORE ADDRESS:PORT".into()) };
    let store = stores::open(name).map_err(|problem| format!("{name} was not opened: {problem}"))?;
    let listener = TcpListener::bind(address)?;
    loop {
        let (stream, _) = listener.accept()?;
        let store = store.clone();
        thread::spawn(move || serve(store, stream).unwrap_or_else(|problem| eprintln!("{problem}")));
    }
}
