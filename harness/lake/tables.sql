-- The tables of the lake, with the facts of every run.
--
-- Times in ns count from the beginning of the test; -1 means *did not happen*, null means *not known*.  `date` (UTC, of
-- the start) and `system` are not columns in the files, but part of the names of their folders.

CREATE TABLE runs (
  run STRING NOT NULL,  -- the name under which all tables know a run
  path STRING,  -- of its folder, from the folder in which the lake lies; absolute if elsewhere
  test STRING,
  started TIMESTAMP,
  judged TIMESTAMP,
  workload STRING,
  kinds ARRAY<STRING>,  -- of fault that were asked for, in alphabetical order
  backend STRING,
  nodes INT,
  rate_hz DOUBLE,
  keys INT,
  time_limit_s DOUBLE,
  seed BIGINT,
  bug STRING,  -- that was planted, else null
  bug_found BOOLEAN,  -- null without a planted bug
  finding STRING,  -- the known finding that it shows, else null
  revision STRING,  -- of this repository, "" outside of one
  dirty BOOLEAN,
  verdict STRING,
  exit_code INT,
  summary STRING,
  symptom STRING,  -- id of the violation nearest to the cause, else null
  violations BIGINT,
  vacuous BOOLEAN,  -- null if vacuity was not judged
  operations BIGINT,  -- that were invoked by clients
  ok BIGINT,
  fail BIGINT,
  info BIGINT,  -- unknown outcome, those that never ended included
  p50_ms DOUBLE,  -- of ok operations
  p99_ms DOUBLE,
  faults INT,  -- that were installed
  faults_dealt INT,
  elections INT,
  duration_s DOUBLE,
  judging_s DOUBLE,
  loop_late_p99_ms DOUBLE
);

CREATE TABLE faults (
  run STRING NOT NULL,
  number INT,
  kind STRING,
  name STRING,
  achieved STRING,
  reason STRING,
  words STRING,
  nodes ARRAY<STRING>,
  leader STRING,
  role STRING,  -- "leader" if it hit who led then, else "others"
  injected_ns BIGINT,
  healed_ns BIGINT,
  apply_ms DOUBLE
);

-- One row per second, function and outcome.
CREATE TABLE operations (
  run STRING NOT NULL,
  second INT,  -- in which they were invoked
  f STRING,
  outcome STRING,  -- ok, fail or info
  count INT,
  p50_ms DOUBLE,  -- null for operations that never ended
  p99_ms DOUBLE,
  max_ms DOUBLE,
  faults STRING  -- kinds in force in that second, joined by "+"; "none"
);

CREATE TABLE elections (
  run STRING NOT NULL,
  time_ns BIGINT,
  node STRING,
  epoch BIGINT,
  faults STRING
);

CREATE TABLE violations (
  run STRING NOT NULL,
  place INT,  -- 0 is the nearest to the cause
  symptom STRING,
  words STRING,  -- of the symptom
  checker STRING,
  kind STRING,
  shape STRING,
  faults STRING,  -- kinds that it showed under, joined by "+"; "none"
  roles STRING,
  moment_ns BIGINT,
  preceding STRING,  -- what happened last before it: "partition injected", "election", "nothing"
  summary STRING
);

CREATE TABLE criteria (
  run STRING NOT NULL,
  name STRING,
  value DOUBLE,
  least DOUBLE,
  met BOOLEAN,
  demanded BOOLEAN
);

-- Coverage by faults: a kind of fault, the role that it hit, and the phase of the system; or a named situation.
CREATE TABLE coverage (
  run STRING NOT NULL,
  what STRING,  -- "cell" or "situation"
  name STRING,  -- "kind / role / phase", or the situation's name
  looks BIGINT  -- how often; 0: offered, and never met
);

CREATE TABLE costs (
  run STRING NOT NULL,
  checker STRING,
  verdict STRING,
  seconds DOUBLE
);
