-- Predefined questions over all runs, each one statement that both DuckDB and Spark SQL accept.
-- In `latency`, a percentile is the weighted median of the percentiles of single seconds, because the lake does not
-- contain single latencies.

-- unprovoked: Which violations were not preceded by any fault?
SELECT r.started, r.system, r.workload, v.kind, v.checker, v.symptom, v.moment_ns / 1e9 AS at_s, r.path
FROM violations v JOIN runs r ON v.run = r.run
WHERE v.moment_ns >= 0 AND NOT EXISTS (
  SELECT 1 FROM faults f WHERE f.run = v.run AND f.injected_ns >= 0 AND f.injected_ns <= v.moment_ns)
ORDER BY r.started DESC, at_s;

-- symptoms: When was each symptom first and last seen, and is it seen more often?
WITH seen AS (
  SELECT v.symptom, min(v.words) AS words, v.system, r.run, min(r.started) AS started
  FROM violations v JOIN runs r ON v.run = r.run WHERE v.place = 0 GROUP BY v.symptom, v.system, r.run),
newest AS (SELECT max(started) AS latest FROM runs)
SELECT symptom, system, count(*) AS runs, min(started) AS first_seen, max(started) AS last_seen,
  count_if(started > latest - INTERVAL 7 DAYS) AS last_7_days,
  count_if(started <= latest - INTERVAL 7 DAYS AND started > latest - INTERVAL 14 DAYS) AS the_7_before,
  min(words) AS words
FROM seen CROSS JOIN newest GROUP BY symptom, system ORDER BY last_seen DESC, runs DESC;

-- latency: What are the latencies by week, system and kinds of fault in force?
WITH seconds AS (
  SELECT CAST(date_trunc('WEEK', o.date) AS DATE) AS week, o.system, o.faults, o.f, o.count, o.p50_ms, o.p99_ms,
    o.max_ms
  FROM operations o WHERE o.outcome = 'ok' AND o.p50_ms IS NOT NULL),
ranked AS (
  SELECT s.*, sum(s.count) OVER (PARTITION BY week, system, faults, f) AS of_all,
    sum(s.count) OVER (PARTITION BY week, system, faults, f ORDER BY p50_ms) AS up_to_p50,
    sum(s.count) OVER (PARTITION BY week, system, faults, f ORDER BY p99_ms) AS up_to_p99
  FROM seconds s)
SELECT week, system, faults, f, sum(count) AS operations,
  round(min(CASE WHEN 2 * up_to_p50 >= of_all THEN p50_ms END), 1) AS p50_ms,
  round(min(CASE WHEN 2 * up_to_p99 >= of_all THEN p99_ms END), 1) AS p99_ms,
  round(max(max_ms), 1) AS max_ms
FROM ranked GROUP BY week, system, faults, f ORDER BY week, system, faults, f;

-- before: What happened last before each kind of violation?
SELECT v.kind, v.system, v.preceding, count(*) AS violations, count(DISTINCT v.run) AS runs
FROM violations v GROUP BY v.kind, v.system, v.preceding ORDER BY v.kind, v.system, violations DESC;

-- vacuity: How many runs of each week proved nothing, and what did they lack most often?
WITH missed AS (
  SELECT CAST(date_trunc('WEEK', c.date) AS DATE) AS week, c.system, c.name, count(DISTINCT c.run) AS runs
  FROM criteria c WHERE c.demanded AND NOT c.met GROUP BY week, c.system, c.name),
most AS (
  SELECT week, system, max_by(name, runs) AS missed_most, max(runs) AS missed_in FROM missed GROUP BY week, system),
judged AS (
  SELECT CAST(date_trunc('WEEK', r.date) AS DATE) AS week, r.system, count(*) AS runs, count_if(r.vacuous) AS vacuous
  FROM runs r WHERE r.vacuous IS NOT NULL GROUP BY week, r.system)
SELECT j.week, j.system, j.runs, j.vacuous, round(100 * j.vacuous / j.runs, 1) AS percent, m.missed_most, m.missed_in
FROM judged j LEFT JOIN most m ON j.week = m.week AND j.system = m.system ORDER BY j.week, j.system;

-- fixed: Which symptoms are flaky, and which are not seen since which revision?
WITH tests AS (
  SELECT r.run, r.system, r.workload, array_join(r.kinds, '+') AS kinds, coalesce(r.bug, '') AS bug, r.revision,
    r.started
  FROM runs r WHERE r.revision <> '' AND r.verdict IN ('valid', 'invalid')),
shown AS (
  SELECT DISTINCT t.system, t.workload, t.kinds, t.bug, v.symptom FROM tests t JOIN violations v ON v.run = t.run),
held AS (
  SELECT s.symptom, t.*, EXISTS (SELECT 1 FROM violations v WHERE v.run = t.run AND v.symptom = s.symptom) AS bad
  FROM tests t JOIN shown s
    ON t.system = s.system AND t.workload = s.workload AND t.kinds = s.kinds AND t.bug = s.bug),
by_revision AS (
  SELECT symptom, system, workload, kinds, bug, revision, min(started) AS began, count(*) AS runs,
    count_if(bad) AS bad
  FROM held GROUP BY symptom, system, workload, kinds, bug, revision),
last_bad AS (
  SELECT *, max(CASE WHEN bad > 0 THEN began END) OVER (PARTITION BY symptom, system, workload, kinds, bug) AS bad_at
  FROM by_revision)
SELECT symptom, system, workload, kinds, bug, sum(bad) AS seen_in, sum(runs) AS of_runs,
  substr(max_by(revision, CASE WHEN bad > 0 THEN began END), 1, 12) AS last_bad_revision,
  substr(min_by(revision, CASE WHEN began > bad_at THEN began END), 1, 12) AS good_since_revision,
  coalesce(sum(CASE WHEN began > bad_at THEN runs END), 0) AS runs_since,
  CASE WHEN max(began) > max(bad_at) THEN 'fixed, perhaps'
       WHEN sum(CASE WHEN bad > 0 THEN runs - bad ELSE 0 END) > 0 THEN 'flaky' ELSE 'fails' END AS state
FROM last_bad GROUP BY symptom, system, workload, kinds, bug ORDER BY state, symptom, system;

-- unmet: Which situations and roles did no fault ever meet?
SELECT c.system, c.what, c.name, count(DISTINCT c.run) AS runs
FROM coverage c GROUP BY c.system, c.what, c.name HAVING sum(c.looks) = 0 ORDER BY c.system, c.what, c.name;

-- costs: What does each checker cost?
SELECT c.system, c.checker, count(*) AS runs, round(median(c.seconds), 3) AS median_s,
  round(max(c.seconds), 3) AS slowest_s
FROM costs c GROUP BY c.system, c.checker ORDER BY slowest_s DESC;
