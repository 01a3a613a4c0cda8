//! One node of hiqlite behind a port that speaks JSON lines: a request is one line, and so is its answer.
//!
//!     hiqlite_node NUMBER PORT ADDRESS…      NUMBER of this node, from 1; the ADDRESSes of all nodes
//!
//! `["execute", SQL, [PARAMETERS]]` and `["query", SQL, [PARAMETERS]]` go through Raft.  `["lock", KEY]` waits for
//! a distributed lock, `["unlock", KEY]` releases it; a lock belongs to its connection.  `["status"]` reports the
//! term and the leader of two Raft groups: the group of the database, and the group of the cache, which has the locks.

use std::{collections::HashMap, env, error::Error, fs, path::Path};

use hiqlite::{CacheVariants, Client, Lock, LogSync, Node, NodeConfig, Param};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const SCHEMA: &str = "CREATE TABLE register (k TEXT PRIMARY KEY, v INTEGER NOT NULL) STRICT";
const SCHEMA_IS_MADE: &str = "schema_is_made";

type Answer = Result<Value, Box<dyn Error + Send + Sync>>;

/// hiqlite needs a cache to offer locks.
#[derive(Debug)]
enum Cache {
    Only,
}

impl CacheVariants for Cache {
    fn hiqlite_cache_index(&self) -> usize {
        Cache::Only as usize
    }
    fn hiqlite_cache_variants() -> &'static [(usize, &'static str)] {
        &[(0, "Only")]
    }
}

fn text(word: &Value) -> String {
    word.as_str().unwrap_or_default().to_string()
}

fn parameters(words: &Value) -> Vec<Param> {
    let parameter = |word: &Value| match word {
        Value::Number(number) => number.as_i64().map_or(Param::Null, Param::Integer),
        Value::String(text) => Param::Text(text.clone()),
        _ => Param::Null,
    };
    words.as_array().map(|all| all.iter().map(parameter).collect()).unwrap_or_default()
}

async fn answer(node: &Client, locks: &mut HashMap<String, Lock>, request: &Value) -> Answer {
    let key = text(&request[1]);
    match request[0].as_str().unwrap_or_default() {
        "execute" => Ok(json!(node.execute(key, parameters(&request[2])).await?)),
        "query" => {
            let rows = node.query_consistent(key, parameters(&request[2])).await?;
            let values: Result<Vec<i64>, _> = rows.into_iter().map(|mut row| row.try_get::<i64>("v")).collect();
            Ok(json!(values?))
        }
        "lock" => {
            let lock = node.lock(key.clone()).await?;
            locks.insert(key, lock);
            Ok(json!(true))
        }
        "unlock" => Ok(json!(locks.remove(&key).ok_or("this connection does not hold it")?.is_locked())),
        "status" => {
            let (database, cache) = (node.metrics_db().await?, node.metrics_cache().await?);
            Ok(json!([database.current_term, database.current_leader, cache.current_term, cache.current_leader]))
        }
        other => Err(format!("unknown request {other}").into()),
    }
}

async fn serve(node: Client, stream: TcpStream) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let mut locks = HashMap::new();
    while let Ok(Some(line)) = lines.next_line().await {
        let request = serde_json::from_str::<Value>(&line).unwrap_or_default();
        let line = match answer(&node, &mut locks, &request).await {
            Ok(value) => json!({"ok": value}),
            Err(problem) => json!({"error": problem.to_string()}),
        };
        let sent = write.write_all(format!("{line}\n").as_bytes()).await;
        if sent.is_err() || request[0] == "status" {
            break;
        }
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let filter = tracing_subscriber::EnvFilter::new(env::var("RUST_LOG").unwrap_or("warn".into()));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).init();
    let words: Vec<String> = env::args().collect();
    let (number, port, addresses) = (words[1].parse::<u64>()?, words[2].parse::<u16>()?, &words[3..]);
    let nodes = (1..).zip(addresses).map(|(id, address)| Node {
        id,
        addr_raft: format!("{address}:8100"),
        addr_api: format!("{address}:8200"),
    });
    fs::create_dir_all("data")?;
    let config = NodeConfig {
        node_id: number,
        nodes: nodes.collect(),
        data_dir: "data".into(),
        wal_sync: LogSync::Immediate,
        secret_raft: "a secret of this test".into(),
        secret_api: "a secret of this test".into(),
        ..Default::default()
    };
    let node = hiqlite::start_node_with_cache::<Cache>(config).await?;
    node.wait_until_healthy_db().await;
    node.wait_until_healthy_cache().await;
    if number == 1 && !Path::new(SCHEMA_IS_MADE).exists() {
        node.execute(SCHEMA, vec![]).await?;
        fs::write(SCHEMA_IS_MADE, "")?;
    }
    let listener = TcpListener::bind((addresses[number as usize - 1].as_str(), port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(node.clone(), stream));
    }
}
