-- Gold: messages, bytes, rates and the mean time between messages, per topic and window of the broker's time.
-- A window is written once, when a message has arrived that is later than the window's end by DELAY.
CREATE STREAMING TABLE topic_windows
COMMENT 'per topic and window: messages, bytes, rates, seconds between messages'
AS SELECT
  window.start AS start,
  window.end AS end,
  topic,
  messages,
  bytes,
  messages / seconds AS messages_per_second,
  bytes / seconds AS bytes_per_second,
  try_divide(unix_micros(last) - unix_micros(first), messages - 1) / 1e6 AS inter_arrival
FROM (
  SELECT
    window(timestamp, '10 seconds') AS window,
    10 AS seconds,
    topic,
    count(*) AS messages,
    sum(length(payload)) AS bytes,
    min(timestamp) AS first,
    max(timestamp) AS last
  FROM STREAM bronze WATERMARK timestamp DELAY OF INTERVAL 10 SECONDS
  GROUP BY window(timestamp, '10 seconds'), topic
)
