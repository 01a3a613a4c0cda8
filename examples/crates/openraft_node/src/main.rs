//! One node of openraft behind a port that speaks JSON lines: a request is one line, and so is its answer.
//!
//!     openraft_node POLICY NUMBER PORT ADDRESS…
//!
//! POLICY of reads: `lease` or `index`.  NUMBER of this node, from 1; the ADDRESSes of all nodes.
//!
//! Requests: `["write", KEY, TEXT]`, `["read", KEY]`, and `["status"]`, which reports term and leader.  A node that does
//! not lead, or hands its leadership over, answers "refused", and does nothing.  Requests between nodes begin with a
//! number, which their answers repeat.  A leader hands over to the next node after a fixed time.
//! All data is in memory (openraft-memstore), so a node must not be restarted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::{
    collections::BTreeMap, collections::HashMap, env, error::Error, future::Future, io, sync::Arc, time::Duration,
};

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, v2::RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest};
use openraft::raft::{VoteRequest, VoteResponse};
use openraft::{Config, RaftNetworkFactory, ReadPolicy, SnapshotPolicy, alias};
use openraft_memstore::{ClientRequest, MemStateMachine, TypeConfig as Types, new_mem_store};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, sleep};

/// Time until a leader hands over, and until a connection whose packets are not acknowledged is closed.
const LED: Duration = Duration::from_secs(2);
const UNHEARD: Duration = Duration::from_secs(6);

type Raft = openraft::Raft<Types, Arc<MemStateMachine>>;
type Answer = Result<Value, Box<dyn Error + Send + Sync>>;
type Failed = RPCError<Types>;

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// A connection to another node, which may have many pending requests.
#[derive(Default)]
struct Link {
    address: String,
    open: Mutex<Option<(OwnedWriteHalf, Waiting)>>,
    last: AtomicU64,
}

fn tuned(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(UNHEARD))
}

async fn hear(mut lines: Lines<BufReader<OwnedReadHalf>>, waiting: Waiting) {
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = serde_json::from_str::<Value>(&line).unwrap_or_default();
        if let Some(asker) = waiting.lock().await.remove(&answer[0].as_u64().unwrap_or_default()) {
            let _ = asker.send(answer[1].clone());
        }
    }
    waiting.lock().await.clear();
}

impl Link {
    async fn ask<T: DeserializeOwned>(&self, word: &str, request: impl Serialize) -> io::Result<T> {
        let number = self.last.fetch_add(1, SeqCst);
        let (asker, answered) = oneshot::channel();
        {
            let mut open = self.open.lock().await;
            let (mut write, waiting) = match open.take() {
                Some(open) => open,
                None => {
                    let stream = TcpStream::connect(&self.address).await?;
                    tuned(&stream)?;
                    let (read, write) = stream.into_split();
                    let waiting = Waiting::default();
                    tokio::spawn(hear(BufReader::new(read).lines(), waiting.clone()));
                    (write, waiting)
                }
            };
            waiting.lock().await.insert(number, asker);
            let line = json!([number, word, request]);
            write.write_all(format!("{line}\n").as_bytes()).await?;
            *open = Some((write, waiting)); // a request that failed or was abandoned earlier closes the connection
        }
        let mut answer = answered.await.map_err(io::Error::other)?;
        match answer.get_mut("ok") {
            Some(value) => Ok(serde_json::from_value(value.take())?),
            None => Err(io::Error::other(answer.to_string())),
        }
    }
}

#[derive(Clone)]
struct Links(HashMap<u64, Arc<Link>>);

struct Client(Arc<Link>);

impl RaftNetworkFactory<Types> for Links {
    type Network = Client;

    async fn new_client(&mut self, target: u64, _: &()) -> Client {
        Client(self.0[&target].clone())
    }
}

fn failed(problem: io::Error) -> Failed {
    RPCError::Unreachable(Unreachable::new(&problem))
}

impl RaftNetworkV2<Types> for Client {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, Failed> {
        self.0.ask("append", request).await.map_err(failed)
    }

    async fn vote(&mut self, request: VoteRequest<Types>, _: RPCOption) -> Result<VoteResponse<Types>, Failed> {
        self.0.ask("vote", request).await.map_err(failed)
    }

    async fn transfer_leader(&mut self, request: TransferLeaderRequest<Types>, _: RPCOption) -> Result<(), Failed> {
        self.0.ask("transfer", request).await.map_err(failed)
    }

    async fn full_snapshot(
        &mut self,
        _: alias::VoteOf<Types>,
        _: alias::SnapshotOf<Types>,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        unreachable!("no node makes a snapshot")
    }
}

struct Node {
    number: u64,
    policy: ReadPolicy,
    raft: Raft,
    machine: Arc<MemStateMachine>,
    hands_over: AtomicBool,
}

impl Node {
    fn term_and_leader(&self) -> (u64, Option<u64>) {
        let metrics = self.raft.metrics();
        let seen = metrics.borrow_watched();
        (seen.current_term, seen.current_leader)
    }

    fn leads(&self) -> bool {
        self.term_and_leader().1 == Some(self.number)
    }

    async fn answer(&self, word: &str, sent: Value, text: Value) -> Answer {
        let key = sent.as_str().unwrap_or_default().to_string();
        match word {
            "append" => Ok(json!(self.raft.append_entries(serde_json::from_value(sent)?).await?)),
            "vote" => Ok(json!(self.raft.vote(serde_json::from_value(sent)?).await?)),
            "transfer" => Ok(json!(self.raft.handle_transfer_leader(serde_json::from_value(sent)?).await?)),
            "status" => Ok(json!(self.term_and_leader())),
            "read" => {
                self.raft.ensure_linearizable(self.policy.clone()).await?;
                let machine = self.machine.get_state_machine().await;
                Ok(json!(machine.client_status.get(&key)))
            }
            _ => {
                let request =
                    ClientRequest { client: key, serial: 0, status: text.as_str().unwrap_or_default().into() };
                Ok(json!(self.raft.client_write(request).await?.log_id.index))
            }
        }
    }

    async fn answer_line(&self, line: &str) -> Value {
        let mut request = serde_json::from_str::<Value>(line).unwrap_or_default();
        let number = request[0].as_u64();
        let first = usize::from(number.is_some());
        let [word, sent, text] = [0, 1, 2].map(|at| request.get_mut(first + at).map(Value::take).unwrap_or_default());
        if word == "write" && (!self.leads() || self.hands_over.load(SeqCst)) {
            return json!({"refused": "it does not lead, or hands over"});
        }
        let answer = match self.answer(word.as_str().unwrap_or_default(), sent, text).await {
            Ok(value) => json!({"ok": value}),
            Err(problem) => json!({"error": problem.to_string()}),
        };
        number.map_or(answer.clone(), |number| json!([number, answer]))
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let (read, write) = stream.into_split();
        let (mut lines, write) = (BufReader::new(read).lines(), Arc::new(Mutex::new(write)));
        while let Ok(Some(line)) = lines.next_line().await {
            let (node, write) = (self.clone(), write.clone());
            let last = line == r#"["status"]"#;
            let task = tokio::spawn(async move {
                let answer = node.answer_line(&line).await;
                let _ = write.lock().await.write_all(format!("{answer}\n").as_bytes()).await;
            });
            if last {
                let _ = task.await;
                break;
            }
        }
    }

    async fn hand_over_now_and_then(self: Arc<Self>, nodes: u64) {
        let mut since = None;
        loop {
            sleep(Duration::from_millis(50)).await;
            if !self.leads() {
                since = None;
                self.hands_over.store(false, SeqCst);
            } else if !self.hands_over.load(SeqCst) && since.get_or_insert_with(Instant::now).elapsed() > LED {
                let next = self.number % nodes + 1;
                println!("hands the leadership of term {} over to n{next}", self.term_and_leader().0);
                self.hands_over.store(true, SeqCst);
                self.raft.trigger().transfer_leader(next).await.expect("the library has ended");
            }
        }
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let filter = tracing_subscriber::EnvFilter::new(env::var("RUST_LOG").unwrap_or("warn".into()));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).init();
    let words: Vec<String> = env::args().collect();
    let policy = if words[1] == "lease" { ReadPolicy::LeaseRead } else { ReadPolicy::ReadIndex };
    let (number, port, addresses) = (words[2].parse::<u64>()?, words[3].parse::<u16>()?, &words[4..]);
    let config = Config {
        heartbeat_interval: 500,
        election_timeout_min: 1500,
        election_timeout_max: 3000,
        snapshot_policy: SnapshotPolicy::Never,
        ..Default::default()
    };
    let link = |address: &String| Arc::new(Link { address: format!("{address}:{port}"), ..Default::default() });
    let links = Links((1..).zip(addresses.iter().map(link)).collect());
    let (log, machine) = new_mem_store();
    let raft = Raft::new(number, Arc::new(config.validate()?), links, log, machine.clone()).await?;
    let listener = TcpListener::bind((addresses[number as usize - 1].as_str(), port)).await?;
    if number == 1 {
        let everyone = (1..=addresses.len() as u64).map(|each| (each, ()));
        raft.initialize(BTreeMap::from_iter(everyone)).await?;
    }
    let node = Arc::new(Node { number, policy, raft, machine, hands_over: false.into() });
    tokio::spawn(node.clone().hand_over_now_and_then(addresses.len() as u64));
    loop {
        let (stream, _) = listener.accept().await?;
        tuned(&stream)?;
        tokio::spawn(node.clone().serve(stream));
    }
}
