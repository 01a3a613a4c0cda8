-- Histories, logs and traces as tables.
--
-- NAME is a STRING with few distinct values, stored as a dictionary.  ARRAY<SNAPSHOT> contains rows of `snapshot`.
-- Times are ns since the test began.

CREATE TABLE history (
  "index" BIGINT NOT NULL,
  time_ns BIGINT NOT NULL,
  process INT NOT NULL,
  type TINYINT NOT NULL,
  f NAME NOT NULL,
  key STRING,
  value BIGINT,
  value2 BIGINT,
  payload STRING,
  error NAME,
  node NAME NOT NULL
);

-- One row per record of one node's log in one copy, in offset order.
CREATE TABLE log (
  copy SMALLINT NOT NULL,  -- number of the copy; the last one is the final copy
  node STRING NOT NULL,
  offset BIGINT NOT NULL,
  epoch INT NOT NULL,  -- leader epoch of the batch
  -- Identifies the bytes of the record: the CRC of its batch, mixed with its position in the batch.
  checksum BIGINT NOT NULL,
  batch_offset BIGINT NOT NULL,  -- base offset of its batch
  batch_hash BIGINT NOT NULL,  -- prefix hash at the END of its batch
  key STRING,  -- the object that a workload's write changed, else null
  value BIGINT  -- the value that was written; null also if the record removes the value
);

-- One row per record about brokers, topics and partitions in one node's metadata log, in offset order.
CREATE TABLE cluster (
  copy SMALLINT NOT NULL,
  node STRING NOT NULL,
  offset BIGINT NOT NULL,
  epoch INT NOT NULL,  -- leader epoch of the batch
  batch_offset BIGINT NOT NULL,  -- base offset of its batch
  kind STRING NOT NULL,  -- "register broker", "change partition", ...
  about STRING NOT NULL,  -- "broker 3", a topic id, or a topic id and "/0"
  fields STRING NOT NULL  -- JSON; a field that a change leaves as it was is absent
);

-- The replicas of topics in one copy of a node: one row per batch, and rows from the checkpoint files.
CREATE TABLE topics (
  copy SMALLINT NOT NULL,
  node STRING NOT NULL,
  partition STRING NOT NULL,  -- name of the topic, number, topic id
  -- "batch"; "epoch": an entry of leader-epoch-checkpoint; "high-watermark", "cleaned": from files beside the
  -- partition; "unreadable": the log cannot be read from this offset on
  kind STRING NOT NULL,
  offset BIGINT NOT NULL,  -- base offset of a batch; first offset of an epoch
  "end" BIGINT NOT NULL,  -- offset after a batch; else -1
  epoch INT NOT NULL,  -- epoch of a batch or entry; else -1
  crc BIGINT NOT NULL  -- CRC of a batch; else -1
);

-- One row per comparison of two files that two implementations wrote, or of their results of reading one file.
CREATE TABLE comparisons (
  nodes STRING NOT NULL,
  what STRING NOT NULL,
  compared BIGINT NOT NULL,  -- number of records or batches
  differs STRING,  -- the first difference, null if there is none
  missing STRING  -- reason why nothing could be compared, else null
);

CREATE TABLE snapshot (
  end_offset BIGINT,  -- exclusive
  epoch INT,
  records BIGINT,
  state_hash BIGINT,  -- hash of the state in the file, computed from its bytes
  error STRING  -- reason why the file is no snapshot, null if it is a snapshot
);

-- One row per batch of the last copy of a node whose log begins at 0: the state after a fresh replay up to the batch.
CREATE TABLE replayed (
  node STRING NOT NULL,
  copy SMALLINT NOT NULL,
  offset BIGINT NOT NULL,  -- end of the batch (exclusive)
  hash BIGINT NOT NULL  -- state hash there, as in the "applied" rows of TRACE
);

-- One row per node and copy: facts about the data directory as a whole.
CREATE TABLE copies (
  copy SMALLINT NOT NULL,
  node STRING NOT NULL,
  "when" STRING NOT NULL,  -- "before heal 3", "between heals", "final"
  state STRING NOT NULL,  -- state of the process when the copy was taken: running|stopped|dead
  log_end BIGINT NOT NULL,  -- log end offset: offset after the last whole batch
  torn_bytes BIGINT NOT NULL,  -- size of an incomplete last batch
  quorum_epoch INT NOT NULL,  -- epoch in the quorum-state file, -1 if there is none
  voted_for STRING,  -- the node that got this node's vote in that epoch
  trace_seq BIGINT NOT NULL,  -- last seq of the node's trace when the copy was taken, -1 if there is none
  error STRING,  -- reason why the copy is unreadable, null if it is readable
  -- First offset of the log: above 0 after a snapshot; null in runs of older versions.  LOG may contain entries below
  -- this offset if other copies contain them and the prefix hash at this offset proves that this log had them, too.
  log_start BIGINT,
  snapshots ARRAY<SNAPSHOT>,  -- its complete snapshots by name; null in runs of older versions
  disk STRING,  -- the directory id of the disk (KIP-853), null if it is unknown
  leader_id INT  -- the leader in the quorum-state file, -1 for none; null if it is unknown
);

-- One row per event that a node recorded; (node, seq) orders them, never the clock.
CREATE TABLE trace (
  node STRING NOT NULL,
  incarnation INT NOT NULL,  -- 0 for the first start of the process, then 1, ...
  seq BIGINT NOT NULL,  -- rises within a node, also across incarnations
  time_ns BIGINT NOT NULL,  -- since the test began (display only)
  event NAME NOT NULL,  -- see TRACE_EVENTS
  epoch INT NOT NULL,
  offset BIGINT,  -- see TRACE_EVENTS
  hash BIGINT,  -- see TRACE_EVENTS
  peer STRING,  -- candidate of a vote; leader of a role, null if unknown
  role STRING,  -- unattached|prospective|candidate|leader|follower|resigned
  detail STRING  -- text for readers
);

-- The meaning of the columns of `trace` for each event.
INSERT INTO trace_events VALUES
  ('disk',
    'precedes `start` in systems whose disks can be replaced: detail = directory id of the disk (KIP-853), epoch
     = as recovered; a node with a new id is another replica, which has no votes and no log yet'),
  ('start',
    'offset = log end as recovered, hash = prefix hash there, epoch = as recovered'),
  ('append',
    'offset = log end after the append, epoch = of the last appended batch'),
  ('flush',
    'offset = log end that is known to be durable'),
  ('truncate',
    'offset = log end after the truncation'),
  ('vote',
    'the node''s vote is durable: epoch, peer = the candidate (its own name if it votes for itself)'),
  ('quorum-state',
    'content of quorum-state when the process starts, and when it is written without a new vote: epoch, peer = the
     candidate voted for in this epoch, null if none'),
  ('role',
    'epoch, role, peer = leader if known; offset = epoch start offset when role is leader'),
  ('high-watermark',
    'offset = new mark, hash = prefix hash there (null if the mark is inside a batch)'),
  ('applied',
    'offset = end of the applied batch (exclusive), hash = state hash there'),
  ('snapshot',
    'a snapshot is durable under its final name: offset = its end (exclusive), hash = state hash there, peer =
     the node it was fetched from, its own name if it was on disk at a start, null if the node has just written it'),
  ('voters',
    'the voters named by the log changed, or the log named voters at the start of the process: offset = of the record
     that names them, null for voters of the configuration; detail = their names, separated by spaces'),
  ('refused',
    'the node refused a fetched batch because it was corrupt: offset = the batch''s base offset, peer = node that
     sent the batch, detail = the reason'),
  ('sessions',
    'the node became the active controller, and each broker that is not fenced gets a full session from now on:
     offset = end of the entries that the node has applied, detail = duration of a session in ms'),
  ('broker',
    'the contact of the node''s broker with controllers: offset = epoch of the broker; detail = a word with values,
     times in ms: ''heard B'': from now on, the last answered heartbeat was sent less than B ago; ''unheard N'': this
     is no longer true, the last answered heartbeat was sent N ago; ''leaving N'': the broker begins a controlled
     shutdown, N as before, -1 without a heartbeat; ''left'': the controller has permitted the shutdown;
     ''registered P I'': incarnation I is registered, and P is the epoch that the previous incarnation wrote to disk
     in a controlled shutdown, else -1; ''refused N I'': the request to register I was refused because of another
     incarnation, it was sent N ago'),
  ('fatal',
    'the node stops because of an error: detail = the reason'),
  ('stop',
    'the process exits after an orderly shutdown');
