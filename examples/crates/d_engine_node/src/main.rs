//! One node of d-engine behind a port that speaks JSON lines: a request is one line, and so is its answer.
//!
//!     d_engine_node CONFIGURATION ADDRESS:PORT
//!
//! `["put", KEY, TEXT]`, `["get", KEY]` (a linearizable read) and `["status"]`, which reports the term and the number of
//! the leader that this node knows.  A node that does not lead answers "refused", and does nothing.

use std::{env, error::Error, sync::Arc};

use d_engine::prelude::{EmbeddedEngine, FileStateMachine, FileStorageEngine};
use d_engine::{ClientApiError, ErrorCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

async fn answer(engine: &EmbeddedEngine, request: &Value) -> Result<Value, ClientApiError> {
    let word = |at: usize| request[at].as_str().unwrap_or_default();
    let client = engine.client();
    match word(0) {
        "put" => Ok(json!(client.put(word(1), word(2)).await?)),
        "get" => {
            let found = client.get_linearizable(word(1)).await?;
            Ok(json!(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())))
        }
        _ => Ok(json!(engine.leader_info().map(|leader| (leader.term, leader.leader_id)))),
    }
}

async fn serve(engine: Arc<EmbeddedEngine>, stream: TcpStream) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let request = serde_json::from_str::<Value>(&line).unwrap_or_default();
        let answered = answer(&engine, &request).await;
        if answered.as_ref().is_err_and(|problem| problem.message().starts_with("Channel closed")) {
            eprintln!("the engine has ended");
            std::process::exit(1);
        }
        let line = match answered {
            Ok(value) => json!({"ok": value}),
            Err(problem) if problem.code() == ErrorCode::NotLeader => json!({"refused": "it does not lead"}),
            Err(problem) => json!({"error": format!("{problem:?}")}),
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
    let storage = FileStorageEngine::new("db/storage".into())?;
    let machine = FileStateMachine::new("db/state_machine".into()).await?;
    let engine = EmbeddedEngine::start_custom(Arc::new(storage), Arc::new(machine), Some(&words[1])).await?;
    let engine = Arc::new(engine);
    let listener = TcpListener::bind(&words[2]).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(engine.clone(), stream));
    }
}
