-- Rows of Kafka operations, from their JSON payloads: `payloads` (o, f, described, answered, payload).
--
-- described: true if the payload shows what the operation did.
-- answered: true if it is the payload of a completion; only completions contain offsets and polled messages.
-- odd: these queries do not support the payload; the reader of single operations reads it, or names its error.

CREATE TABLE parts AS
SELECT * EXCLUDE (items), unnest(items) AS part, generate_subscripts(items, 1) AS place
FROM (SELECT o, f, described, answered, TRY_CAST(payload AS JSON[]) AS items FROM payloads);

CREATE TABLE steps AS
SELECT o, described, answered, place, part, part->>0 AS step, json_array_length(part) AS size,
  answered AND json_type(part, '$[2]') = 'ARRAY' AS has_pair, if(has_pair, TRY_CAST(part->2 AS JSON[]), NULL) AS pair,
  if(step = 'rebalance', TRY_CAST(part->1 AS JSON[]), NULL) AS keys,
  if(step = 'poll', TRY_CAST(part->1 AS MAP(VARCHAR, JSON[][])), NULL) AS shown
FROM parts WHERE f NOT IN ('assign', 'subscribe');

CREATE TABLE entries AS
SELECT * EXCLUDE (of_key), to_json(of_key.key) AS key, of_key.value AS messages
FROM (
  SELECT o, described, place, unnest(map_entries(shown)) AS of_key, generate_subscripts(map_entries(shown), 1) AS entry
  FROM steps WHERE step = 'poll' AND answered
);

CREATE VIEW found AS
SELECT o, described, place, 0 AS entry, 0 AS item, 'sent' AS kind, part->1 AS key,
  if(has_pair, pair[1], NULL) AS stated, if(has_pair, pair[2], part->2) AS value,
  size <> 3 OR (has_pair AND len(pair) <> 2) AS odd
FROM steps WHERE step = 'send'
UNION ALL
SELECT o, described, place, 0, 0, 'asked', NULL, NULL, NULL,
  size > 2 OR (size = 2 AND (json_type(part, '$[1]') NOT IN ('OBJECT', 'NULL') OR (answered AND shown IS NULL
    AND json_type(part, '$[1]') = 'OBJECT')))
FROM steps WHERE step = 'poll'
UNION ALL
SELECT o, described, place, entry, 0, 'polled', key, NULL, NULL, true FROM entries WHERE messages IS NULL
UNION ALL
SELECT o, described, place, entry, item, 'polled', key, message[1], message[2], len(message) <> 2
FROM (SELECT * EXCLUDE (messages), unnest(messages) AS message, generate_subscripts(messages, 1) AS item FROM entries)
UNION ALL
SELECT o, described, place, 0, generate_subscripts(keys, 1), 'rebalanced', unnest(keys), NULL, NULL, size <> 2
FROM steps WHERE step = 'rebalance'
UNION ALL
SELECT o, described, place, 0, 0, 'assigned', part, NULL, NULL, false FROM parts WHERE f IN ('assign', 'subscribe')
UNION ALL
SELECT o, described, place, 0, 0, 'unknown', NULL, NULL, NULL, true
FROM steps WHERE coalesce(step NOT IN ('send', 'poll', 'rebalance') OR (step = 'rebalance' AND keys IS NULL), true);

CREATE TABLE rows AS
SELECT o, described, place, entry, item, kind, key->>'$' AS key,
  if(kind IN ('assigned', 'rebalanced'), key->>'$', '') AS sorted, TRY_CAST(stated AS BIGINT) AS "offset", value,
  coalesce(odd, true)
  OR (kind <> 'asked' AND coalesce(json_type(key) NOT IN ('UBIGINT', 'BIGINT', 'VARCHAR')
    OR starts_with(key->>'$', '"'), true))
  OR (kind IN ('sent', 'polled') AND coalesce(json_type(value) NOT IN ('UBIGINT', 'BIGINT', 'VARCHAR'), true))
  OR (stated IS NOT NULL AND coalesce(json_type(stated) <> 'UBIGINT'
    OR TRY_CAST(stated AS BIGINT) >= 9223372036854775807, true)) AS odd
FROM found;

CREATE VIEW odd AS
SELECT o FROM payloads
WHERE coalesce(json_type(payload) <> 'ARRAY', true) OR regexp_matches(payload, ',\s*[\]}]')
UNION ALL SELECT o FROM rows WHERE odd;
